// Interface of low_rank_linear.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

namespace sluice {

constexpr int kLowRankTokens = 16;  // of a step, and of a tile
constexpr int kMaxLowRank = 64;

// What the layers of a step share, and one layer's matrices (kernels/low_rank.py).
struct LowRank {
  const void* down;   // [num_slots, columns, k], where columns = parts * max_rank
  const void* up;     // [num_slots, features, max_rank]
  const int* ranks;   // [num_slots, parts], rows rank_stride apart; 0: none
  const int* ends;    // [parts + 1], of the parts' features
  const int* slots;   // [num_tiles]: whose the tokens of a tile are; -1: no tile
  const int* tokens;  // [num_tiles, kLowRankTokens], -1 behind the last
  int num_tiles, parts, rank_stride;
  int max_rank;  // a multiple of 16, at most kMaxLowRank
};

struct LowRankLinear {
  void* out;           // [tokens, features], contiguous
  void* low;           // [tokens, columns], contiguous
  const void* x;       // [tokens, k], rows x_stride elements apart
  const void* weight;  // [features, k], contiguous
  const void* bias;    // [features] or null
  LowRank adapters;
  int64_t x_stride;
  int tokens;    // at most kLowRankTokens
  int features;  // a multiple of 16
  int k;         // a multiple of 64
};

// out = x weight^T + bias and, in the same launch, every token of a tile shrunk to its adapter's ranks:
// low = x down^T.
cudaError_t low_rank_linear(const LowRankLinear& linear, bool bf16, cudaStream_t stream);

struct ExpandLowRank {
  void* out;         // [tokens, features], or, gated, [tokens, features / 2]; contiguous
  const void* made;  // [tokens, features], contiguous: what the layer itself made; may be out
  const void* low;   // as above
  LowRank adapters;
  int tokens, features;
  bool gated;  // features = [gate | up], out = silu(gate) * up of all tokens
};

// out = made + low up^T for the tokens of tiles; others are left alone, or gated as they are.
cudaError_t expand_low_rank(const ExpandLowRank& expand, bool bf16, cudaStream_t stream);

}  // namespace sluice
