// Interface of sampling.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

#include "common/arguments.h"
#include "common/dtype.h"
#include "sampling/sampling_row.cuh"

namespace sluice {

struct Sampling {
  ARGUMENTS(Sampling);
  IN(const void*, logits, "T[num_rows, vocab] rows");
  IN(const SamplingRow*, table, "u8[_, 32]");    // [max_rows]
  IN(const int*, rows, "[>=num_rows]");       // places in the table; -1 = padding, not written
  IN(const int*, positions, "[>=num_rows]");  // index in the request of the token being drawn
  OUT(int64_t*, out, "[num_rows]");
  OPTIONAL(int64_t*, tokens, "[_, tokens_stride]");  // the draw goes to tokens[row, position] too
  OPTIONAL(int64_t*, host, "[>=num_rows] host");     // pinned memory that gets what out gets
  STRIDE(int64_t, logits_stride, logits, 0);
  DIM(int64_t, tokens_stride);
  DIM(int, num_rows);
  DIM(int, vocab);
};

// Temperature, top-k, top-p, min-p and the draw, as kernels/reference.py defines them.
cudaError_t sample(const Sampling& sampling, Dtype dtype, cudaStream_t stream);

struct TokenBitmask {
  ARGUMENTS(TokenBitmask);
  IN(void*, logits, "T[_, vocab] rows");        // written
  IN(const int*, bitmask, "[num_masks, words]");  // bit i % 32 of word i / 32 allows token i
  IN(const int64_t*, rows, "[>=num_masks]");    // the row of logits each mask belongs to
  STRIDE(int64_t, logits_stride, logits, 0);
  DIM(int, num_masks);
  DIM(int, words);
  DIM(int, vocab);
};

// Sets the logits of forbidden tokens to -inf.
cudaError_t apply_token_bitmask(const TokenBitmask& mask, Dtype dtype, cudaStream_t stream);

}  // namespace sluice
