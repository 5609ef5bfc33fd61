// Sums over the GPUs of a group, for few bytes: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

#include "common/arguments.h"
#include "common/dtype.h"

namespace sluice {

constexpr int kMostRanks = 8;
constexpr int kExchangeCtas = 264;      // each has a part of every buffer
constexpr int kExchangeVectors = 1024;  // of 16 bytes: what a CTA sends at once
constexpr int kExchangeControl = 16384;  // bytes at the beginning of a buffer
constexpr int64_t kExchangePlain = kExchangeVectors * 16;  // bytes of a slot
constexpr int64_t kExchangeFlagged = 2 * kExchangePlain;   // with a flag beside each word

// out = the sum of all ranks' x, bitwise the same on each. With a weight, that sum is added to
// residual, and out is the RMSNorm of the result, as of rms_norm.
struct AllReduce {
  ARGUMENTS(AllReduce);
  OUT(void*, out, "T[rows, width]");
  IN(const void*, x, "T[rows, width] 16");  // rows of at most kExchangeVectors
  // The addresses of the buffers of all ranks, where this rank finds them: kExchangeControl bytes,
  // then kExchangeCtas * 2 * ranks slots of each kind, all of them zeros at first.
  IN(const int64_t*, buffers, "[ranks] host");
  ARG(int, rank);
  OPTIONAL(void*, residual, "T[rows, width]");
  OPTIONAL(const void*, weight, "T|f32[width]");
  ARG_OR(float, eps, 0);
  ARG_OR(int, most_flagged, 256 << 10);  // bytes of x up to which words travel with flags
  DIM(int, ranks);
  DIM(int, rows);
  DIM(int, width);
  bool wide;  // the weight is float32, and x is not
};

cudaError_t all_reduce(const AllReduce& sum, Dtype dtype, cudaStream_t stream);

}  // namespace sluice
