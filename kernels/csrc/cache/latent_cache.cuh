// Interface of latent_cache.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

#include "common/vector.cuh"

namespace sluice {

struct StoreLatents {
  void* q;               // [tokens, heads, rotary_dim + rank], contiguous
  const void* q_turned;  // [tokens, heads, rotary_dim], with strides
  const void* kv;        // [tokens, rank + rotary_dim], contiguous: latent, then what is rotated
  const void* norm;      // [rank]
  void* cache;           // [slots, rotary_dim + rank]; of q's type or e4m3
  const float* cos_sin;  // [max_positions, rotary_dim]: cosines, then sines
  const int64_t* positions;  // [tokens]
  const int64_t* slots;      // [tokens]; -1 = padding, nothing is written to the cache
  const float* scale;        // [1], what an e4m3 cache will be multiplied with; else null
  int64_t q_token_stride, q_head_stride;
  int tokens, heads, rank, rotary_dim;
  float eps;
  bool interleaved;  // dimensions come in pairs (0, 1), (2, 3) in place of halves
};

// What latent attention (arXiv:2405.04434) does between its projections and attention: the rotated
// part of each query head to its place in q; the latent, normalised, and the rotated part of the
// keys into the paged cache. Both are rotated into halves.
cudaError_t store_latents(const StoreLatents& latents, Dtype dtype, cudaStream_t stream);

}  // namespace sluice
