// What the products of few tokens have in common: how a CTA's 16 features become outputs.
#pragma once

#include "vector.cuh"

namespace sluice {

constexpr int kSkinnyFeatures = 16;  // of a CTA

// Which feature row 0..15 of a CTA is: they follow each other or, gated, 8 gates and their 8 ups.
__device__ __forceinline__ int skinny_feature(int row, int features, bool gated) {
  if (!gated) return blockIdx.x * kSkinnyFeatures + row;
  return (row < 8 ? 0 : features / 2) + blockIdx.x * 8 + row % 8;
}

// feature(row, token): the finished sum, rounded to T. 256 threads, at most 16 tokens.
template <typename T, typename Feature>
__device__ __forceinline__ void store_skinny(void* to, int tokens, int features, bool gated,
                                             Feature feature) {
  T* out = static_cast<T*>(to);
  if (gated) {
    const int row = threadIdx.x % 8, token = threadIdx.x / 8;
    if (token >= tokens) return;
    const float gate = feature(row, token);
    const float silu = rounded<T>(gate / (1.f + __expf(-gate)));
    out[static_cast<int64_t>(token) * (features / 2) + blockIdx.x * 8 + row] =
        from_float<T>(silu * feature(row + 8, token));
  } else {
    const int row = threadIdx.x % kSkinnyFeatures, token = threadIdx.x / kSkinnyFeatures;
    if (token >= tokens) return;
    out[static_cast<int64_t>(token) * features + blockIdx.x * kSkinnyFeatures + row] =
        from_float<T>(feature(row, token));
  }
}

}  // namespace sluice
