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

// A warp's sums by feature and token, as lane 4 * g + t has them of MMAs of 16 features, 8 tokens.
template <int kGroups, int kColumns>
__device__ __forceinline__ void keep_skinny(float (&partial)[kSkinnyFeatures][kColumns],
                                            const float (&sum)[kGroups][4], int g, int t) {
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int i = 0; i < 4; ++i) partial[i / 2 * 8 + g][group * 8 + t * 2 + i % 2] = sum[group][i];
  }
}

// feature(row, token): the finished sum, rounded to T. 16 threads for each token, or more.
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
