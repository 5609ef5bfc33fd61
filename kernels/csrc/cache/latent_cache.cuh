// Interface of latent_cache.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

#include "common/arguments.h"
#include "common/dtype.h"

namespace sluice {

struct StoreLatents {
  ARGUMENTS(StoreLatents);
  IN(void*, q, "T[tokens, heads, width]");  // of which the first rotary_dim are written
  IN(const void*, q_turned, "T[tokens, heads, rotary_dim] strided");
  IN(const void*, kv, "T[tokens, width]");  // the latent, then what is rotated
  IN(const void*, norm, "T[rank]");
  IN(void*, cache, "T|e4m3[_, _, 1, width]");
  IN(const float*, cos_sin, "[_, rotary_dim]");  // of each position: cosines, then sines
  IN(const int64_t*, positions, "[tokens]");
  IN(const int64_t*, slots, "[tokens]");  // -1 = padding, nothing is written to the cache
  OPTIONAL(const float*, scale, "[1]");   // what an e4m3 cache will be multiplied with
  STRIDE(int64_t, q_token_stride, q_turned, 0);
  STRIDE(int64_t, q_head_stride, q_turned, 1);
  DIM(int, tokens);
  DIM(int, heads);
  DIM(int, rank);
  DIM(int, rotary_dim);
  ARG(float, eps);
  ARG(bool, interleaved);  // dimensions come in pairs (0, 1), (2, 3) in place of halves
};

// What latent attention (arXiv:2405.04434) does between its projections and attention: the rotated
// part of each query head to its place in q; the latent, normalised, and the rotated part of the
// keys into the paged cache. Both are rotated into halves.
cudaError_t store_latents(const StoreLatents& latents, Dtype dtype, cudaStream_t stream);

}  // namespace sluice
