// How CTAs shrink x to the ranks of adapters: each some ranks of one adapter, for the tokens of a
// tile, and a slice of k.
#pragma once

#include "common/dependent_launch.cuh"
#include "gemm/skinny_sums.cuh"
#include "lora/lora.cuh"

namespace sluice {

constexpr int kLoraColumns = kSkinnyTiles * kSkinnyFeatures;  // ranks of a CTA

inline __host__ __device__ int num_columns(const Lora& a) { return a.parts * a.max_rank; }

// CTAs that shrink the tokens of a tile.
inline __host__ __device__ int shrinking_each(const Lora& a) {
  return (num_columns(a) + kLoraColumns - 1) / kLoraColumns * kLoraSlices;
}

// What one of them shrinks.
struct LoraShare {
  int slot;   // -1: nothing
  int first;  // of its columns
  int slice;
  const int* tokens;  // of the tile; -1 behind the last

  // index: of the CTA among those of the tile.
  __device__ __forceinline__ LoraShare(const Lora& a, int tile, int index)
      : slot(a.tile_slots[tile]),  // sent ahead of all kernels of the step
        first(index / kLoraSlices * kLoraColumns),
        slice(index % kLoraSlices),
        tokens(a.tile_tokens + static_cast<int64_t>(tile) * a.rows) {}

  // Whether the adapter has any of the ranks.
  __device__ __forceinline__ bool is_used(const Lora& a) const {
    auto has = [&](int column) {
      const int* ranks = a.ranks + slot * a.rank_stride;
      return column < num_columns(a) && column % a.max_rank < ranks[column / a.max_rank];
    };
    return slot >= 0 && (has(first) || has(first + kSkinnyFeatures));
  }
};

// The tokens of a tile, as `sum_skinny` takes them.
template <typename T, int kGroups>
struct TileTokens {
  const T* x;  // this lane's elements of the first token of x
  int64_t stride;
  int token[kGroups];

  template <typename Product>
  __device__ __forceinline__ TileTokens(const Product& p, const int* tokens)
      : x(static_cast<const T*>(p.x) + threadIdx.x % 4 * 8), stride(p.x_stride) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      token[group] = tokens[group * 8 + threadIdx.x % 32 / 4];
    }
  }
  __device__ __forceinline__ bool has(int group) const { return token[group] >= 0; }
  __device__ __forceinline__ const T* row(int group) const { return x + token[group] * stride; }
};

// Sums of the first kGroups * 8 tokens of a share, by the first kWarps of a CTA, into p.low. x: those
// tokens, or, kWhole, all of the step.
template <typename T, int kWarps, int kGroups, int kThreads, bool kWhole, typename Product,
          typename Tokens, int kParts>
__device__ __forceinline__ void shrink(
    const Product& p, const LoraShare& share, const Tokens& x,
    float (&partial)[kSkinnyTiles][kParts][kSkinnyFeatures][kGroups * 8 + 1]) {
  const Lora& a = p.adapters;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, columns = num_columns(a);
  if (warp < kWarps) {
    const int64_t row = static_cast<int64_t>(share.slot) * columns + share.first + lane / 4;
    const bool whole = share.first + kSkinnyFeatures < columns;
    const SkinnyRows<T> rows = {static_cast<const T*>(a.down) + row * p.k + lane % 4 * 8,
                                8l * p.k, whole ? kSkinnyFeatures * static_cast<int64_t>(p.k) : 0};
    const int chunks = p.k / kSkinnyChunk;
    const int each = (chunks + kLoraSlices - 1) / kLoraSlices;
    float sum[kSkinnyTiles][kGroups][4] = {};
    sum_skinny<T, kWarps>(sum, rows, x, share.slice * each + warp,
                          min(chunks, (share.slice + 1) * each));
#pragma unroll
    for (int i = 0; i < kSkinnyTiles; ++i) {
      keep_skinny(partial[i][warp], sum[i], lane / 4, lane % 4);
    }
  }
  allow_next();
  __syncthreads();
  for (int i = threadIdx.x; i < kGroups * 8 * kLoraColumns; i += kThreads) {
    const int place = i / kLoraColumns, row = i % kLoraColumns;
    const int token = share.tokens[place];
    if (token < 0 || share.first + row >= columns) continue;
    float total = 0.f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      total += partial[row / kSkinnyFeatures][w][row % kSkinnyFeatures][kWhole ? token : place];
    }
    const int64_t at = static_cast<int64_t>(share.slice) * p.tokens + token;
    p.low[at * columns + share.first + row] = total;
  }
}

}  // namespace sluice
