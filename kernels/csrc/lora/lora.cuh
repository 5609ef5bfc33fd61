// Interface of lora_linear.cu and lora_tiles.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

namespace sluice {

constexpr int kLoraTokens = 16;       // of a tile
constexpr int kLoraLinearTokens = 8;  // of a step of few tokens
constexpr int kLoraTiles = 32;        // of such a step, at most
constexpr int kLoraSlices = 4;        // of k, in sums over it

// What the layers of a step share, and one layer's matrices (kernels/lora.py).
struct Lora {
  const void* down;   // [num_slots, columns, k], where columns = parts * max_rank
  const void* up;     // [num_slots, features, max_rank]
  const int* ranks;   // [num_slots, parts], rows rank_stride apart; 0: none
  const int* ends;    // [parts + 1], of the parts' features
  const int* slots;   // [num_tiles]: whose the tokens of a tile are; -1 from the first tile on that
                      // is not used
  const int* tokens;  // [num_tiles, rows], -1 behind the last
  int num_tiles, parts, rank_stride;
  int max_rank;  // a multiple of 16
  int rows;      // kLoraTokens, or a multiple of it
};

// At most kLoraLinearTokens tokens, a tile for each slot, at most kLoraTiles tiles and 32 parts.
struct LoraLinear {
  void* out;           // [tokens, outputs], contiguous
  float* low;          // [kLoraSlices, tokens, columns], scratch
  int* counters;       // [2], 0 between launches, which follow one another
  const void* x;       // [tokens, k], rows x_stride elements apart
  const void* weight;  // [features, k], contiguous
  const void* bias;    // [features] or null
  Lora adapters;
  int64_t x_stride;
  int tokens;
  int features;  // a multiple of 16
  int k;         // a multiple of 64
  bool gated;    // features = [gate | up], out = silu(gate) * up, outputs = features / 2
};

// out = x weight^T + bias + (x down^T) up^T, each token with the matrices of its tile's slot.
cudaError_t lora_linear(const LoraLinear& linear, bool bf16, cudaStream_t stream);

struct ShrinkLora {
  float* low;     // [kLoraSlices, tokens, columns]; written where the token's adapter has ranks
  const void* x;  // [tokens, k], rows x_stride elements apart
  Lora adapters;
  int64_t x_stride;
  int tokens;
  int k;  // a multiple of 64
};

// low = x down^T, its sums over slices of k.
cudaError_t shrink_lora(const ShrinkLora& shrink, bool bf16, cudaStream_t stream);

struct ExpandLora {
  void* out;         // [tokens, features], contiguous
  const float* low;  // of shrink_lora
  Lora adapters;  // its parts begin and end at multiples of 8
  int tokens;
  int features;
};

// out += low up^T.
cudaError_t expand_lora(const ExpandLora& expand, bool bf16, cudaStream_t stream);

}  // namespace sluice
