// Interface of low_rank_linear.cu and low_rank_tiles.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

namespace sluice {

constexpr int kLowRankTokens = 16;  // of a step of few tokens, and of a tile
constexpr int kLowRankTiles = 32;   // of such a step, at most
constexpr int kLowRankSlices = 4;   // of k, in sums over it

// What the layers of a step share, and one layer's matrices (kernels/low_rank.py).
struct LowRank {
  const void* down;   // [num_slots, columns, k], where columns = parts * max_rank
  const void* up;     // [num_slots, features, max_rank]
  const int* ranks;   // [num_slots, parts], rows rank_stride apart; 0: none
  const int* ends;    // [parts + 1], of the parts' features
  const int* slots;   // [num_tiles]: whose the tokens of a tile are; -1 from the first tile on that
                      // is not used
  const int* tokens;  // [num_tiles, rows], -1 behind the last
  int num_tiles, parts, rank_stride;
  int max_rank;  // a multiple of 16
  int rows;      // kLowRankTokens, or a multiple of it
};

// At most kLowRankTokens tokens, a tile for each slot, at most kLowRankTiles tiles and 32 parts.
struct LowRankLinear {
  void* out;           // [tokens, outputs], contiguous
  float* low;          // [kLowRankSlices, tokens, columns], scratch
  int* counters;       // [2], 0 between launches, which follow one another
  const void* x;       // [tokens, k], rows x_stride elements apart
  const void* weight;  // [features, k], contiguous
  const void* bias;    // [features] or null
  LowRank adapters;
  int64_t x_stride;
  int tokens;
  int features;  // a multiple of 16
  int k;         // a multiple of 64
  bool gated;    // features = [gate | up], out = silu(gate) * up, outputs = features / 2
};

// out = x weight^T + bias + (x down^T) up^T, each token with the matrices of its tile's slot.
cudaError_t low_rank_linear(const LowRankLinear& linear, bool bf16, cudaStream_t stream);

struct ShrinkLowRank {
  float* low;     // [kLowRankSlices, tokens, columns]; written where the token's adapter has ranks
  const void* x;  // [tokens, k], rows x_stride elements apart
  LowRank adapters;
  int64_t x_stride;
  int tokens;
  int k;  // a multiple of 64
};

// low = x down^T, its sums over slices of k.
cudaError_t shrink_low_rank(const ShrinkLowRank& shrink, bool bf16, cudaStream_t stream);

struct ExpandLowRank {
  void* out;         // [tokens, features], contiguous
  const float* low;  // of shrink_low_rank
  LowRank adapters;  // its parts begin and end at multiples of 8
  int tokens;
  int features;
};

// out += low up^T.
cudaError_t expand_low_rank(const ExpandLowRank& expand, bool bf16, cudaStream_t stream);

}  // namespace sluice
