// What the products of few tokens have in common: how features become outputs.
#pragma once

#include "common/vector.cuh"

namespace sluice {

constexpr int kSkinnyFeatures = 16;  // of a tile; a CTA makes one or more

// Which feature a row of a CTA's tiles is: they follow each other or, gated, a tile has 8 gates and
// their 8 ups. cta: counted from the one with the first features.
template <int kTiles = 1>
__device__ __forceinline__ int skinny_feature(int row, int features, bool gated,
                                              int cta = blockIdx.x) {
  if (!gated) return cta * kTiles * kSkinnyFeatures + row;
  const int tile = cta * kTiles + row / kSkinnyFeatures;
  return (row % kSkinnyFeatures < 8 ? 0 : features / 2) + tile * 8 + row % 8;
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

// feature(row, token): the finished sum, rounded to T. The last tiles may lie behind the features.
template <typename T, int kThreads = 256, int kTiles = 1, typename Feature>
__device__ __forceinline__ void store_skinny(void* to, int tokens, int features, bool gated,
                                             Feature feature, int cta = blockIdx.x) {
  T* out = static_cast<T*>(to);
  if (gated) {
    constexpr int kColumns = kTiles * 8;
    for (int i = threadIdx.x; i < tokens * kColumns; i += kThreads) {
      const int token = i / kColumns, column = i % kColumns;
      const int output = cta * kColumns + column;
      if (output >= features / 2) continue;
      const int row = column / 8 * kSkinnyFeatures + column % 8;
      const float gate = feature(row, token);
      const float silu = rounded<T>(gate / (1.f + __expf(-gate)));
      out[static_cast<int64_t>(token) * (features / 2) + output] =
          from_float<T>(silu * feature(row + 8, token));
    }
  } else {
    constexpr int kColumns = kTiles * kSkinnyFeatures;
    for (int i = threadIdx.x; i < tokens * kColumns; i += kThreads) {
      const int token = i / kColumns, column = i % kColumns;
      const int output = cta * kColumns + column;
      if (output >= features) continue;
      out[static_cast<int64_t>(token) * features + output] =
          from_float<T>(feature(column, token));
    }
  }
}

}  // namespace sluice
