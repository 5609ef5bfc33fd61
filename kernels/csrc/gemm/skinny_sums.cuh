// What a CTA of skinny_linear.cu does: which weights it multiplies, its warps' parts in that, and
// what becomes of their sums.
#pragma once

#include "common/dependent_launch.cuh"
#include "common/mma.cuh"
#include "common/vector.cuh"
#include "gemm/skinny_output.cuh"

namespace sluice {

constexpr int kSmWarps = 16;      // that stream weights
constexpr int kSkinnyTiles = 2;   // of 16 rows of weights, of a CTA
constexpr int kSkinnyChunk = 64;  // elements of k that a warp takes at a time

// Where a lane's weights begin: those of row lane / 4 of the first tile, and how far it is to row
// lane / 4 + 8 and to the second tile.
template <typename T>
struct SkinnyRows {
  const T* first;
  int64_t to_high, to_tile;
};

// Whether the second tile of a CTA has features; if not, it is the first one once more.
__device__ __forceinline__ bool is_whole(int features, int cta) {
  return skinny_feature<kSkinnyTiles>(kSkinnyFeatures, features, false, cta) < features;
}

template <typename T, typename Product>
__device__ __forceinline__ SkinnyRows<T> skinny_rows(const Product& p, int cta) {
  const int lane = threadIdx.x % 32;
  auto feature = [&](int row) -> int64_t {
    return skinny_feature<kSkinnyTiles>(row, p.features, p.gated, cta);
  };
  const int64_t to_tile =
      is_whole(p.features, cta) ? (feature(kSkinnyFeatures) - feature(0)) * p.k : 0;
  return {static_cast<const T*>(p.weight) + feature(lane / 4) * p.k + lane % 4 * 8,
          (feature(8) - feature(0)) * p.k, to_tile};
}

struct SkinnyWeights {
  uint4 low[kSkinnyTiles][2], high[kSkinnyTiles][2];  // rows g and g + 8, two halves of a chunk
};

// Adds the products of rows with x for chunks `chunk`, `chunk` + kWarps, ... before `end`.
// x.row(group): where this lane's elements of token lane / 4 of that group begin, if x.has(group).
template <typename T, int kWarps, int kGroups, typename Tokens>
__device__ __forceinline__ void sum_skinny(float (&sum)[kSkinnyTiles][kGroups][4],
                                           const SkinnyRows<T>& rows, Tokens x, int chunk,
                                           int end) {
  auto load = [&](SkinnyWeights& w, int chunk) {
    if (chunk >= end) return;
#pragma unroll
    for (int tile = 0; tile < kSkinnyTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const T* at = rows.first + tile * rows.to_tile + chunk * kSkinnyChunk + half * 32;
        w.low[tile][half] = load_once(at);
        w.high[tile][half] = load_once(at + rows.to_high);
      }
    }
  };

  SkinnyWeights now, next;
  load(now, chunk);
  wait_for_inputs();
  for (; chunk < end; chunk += kWarps) {
    load(next, chunk + kWarps);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        uint4 v = make_uint4(0, 0, 0, 0);
        if (x.has(group)) {
          const T* row = x.row(group);
          v = *reinterpret_cast<const uint4*>(row + chunk * kSkinnyChunk + half * 32);
        }
#pragma unroll
        for (int tile = 0; tile < kSkinnyTiles; ++tile) {
          const uint4 a = now.low[tile][half], b = now.high[tile][half];
          Half<T>::mma(sum[tile][group], {a.x, b.x, a.y, b.y}, v.x, v.y);
          Half<T>::mma(sum[tile][group], {a.z, b.z, a.w, b.w}, v.z, v.w);
        }
      }
    }
    now = next;
  }
}

// The tokens of a product, in their order, as `sum_skinny` takes them.
template <typename T>
struct SkinnyTokens {
  const T* x;  // this lane's elements of the first
  int64_t stride;
  int num_tokens;

  template <typename Product>
  __device__ __forceinline__ explicit SkinnyTokens(const Product& p)
      : x(static_cast<const T*>(p.x) + threadIdx.x % 4 * 8),
        stride(p.x_stride),
        num_tokens(p.tokens) {}
  static __device__ __forceinline__ int token(int group) { return group * 8 + threadIdx.x % 32 / 4; }
  __device__ __forceinline__ bool has(int group) const { return token(group) < num_tokens; }
  __device__ __forceinline__ const T* row(int group) const { return x + token(group) * stride; }
};

// Of the sums that each of kParts warps has kept.
template <typename T, int kThreads, typename Product, int kParts, int kColumns>
__device__ __forceinline__ void store_skinny_sums(
    const Product& p, int cta,
    const float (&partial)[kSkinnyTiles][kParts][kSkinnyFeatures][kColumns]) {
  auto finished = [&](int row, int token) {
    float total = 0.f;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      total += partial[row / kSkinnyFeatures][part][row % kSkinnyFeatures][token];
    }
    if (p.bias) {
      const int at = skinny_feature<kSkinnyTiles>(row, p.features, p.gated, cta);
      total += to_float(static_cast<const T*>(p.bias)[at]);
    }
    return rounded<T>(total);
  };
  store_skinny<T, kThreads, kSkinnyTiles>(p.out, p.tokens, p.features, p.gated, finished, cta);
}

}  // namespace sluice
