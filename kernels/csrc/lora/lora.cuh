// Interface of lora_linear.cu and lora_tiles.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

#include "common/arguments.h"

namespace sluice {

constexpr int kLoraTokens = 16;       // of a tile
constexpr int kLoraLinearTokens = 8;  // of a step of few tokens
constexpr int kLoraTiles = 32;        // of such a step, at most
constexpr int kLoraSlices = 4;        // of k, in sums over it

// What the layers of a step share, and one layer's matrices (kernels/lora.py).
struct Lora {
  ARGUMENTS(Lora);
  IN(const void*, down, "H[num_slots, parts, max_rank, k] 16");
  IN(const void*, up, "H[num_slots, features, max_rank] 16");
  IN(const int*, ranks, "[num_slots, parts] rows");  // 0: none
  IN(const int*, ends, "[parts + 1]");               // of the parts' features
  // Whose the tokens of a tile are; -1 from the first tile on that is not used.
  IN(const int*, tile_slots, "[num_tiles]");
  IN(const int*, tile_tokens, "[num_tiles, rows]");  // -1 behind the last
  DIM(int, num_tiles);
  DIM(int, parts);
  STRIDE(int, rank_stride, ranks, 0);
  DIM(int, max_rank);  // a multiple of 16
  DIM(int, rows);      // kLoraTokens, or a multiple of it
};

// At most kLoraLinearTokens tokens, a tile for each slot, at most kLoraTiles tiles and 32 parts.
struct LoraLinear {
  ARGUMENTS(LoraLinear);
  OUT(void*, out, "H[tokens, features/gated]");
  IN(float*, low, "[4, tokens, parts*max_rank] 16");  // scratch: kLoraSlices sums over k
  IN(int*, counters, "[2]");  // 0 between launches, which follow one another
  IN(const void*, x, "H[tokens, k] rows16");
  IN(const void*, weight, "H[features, k] 16");
  OPTIONAL(const void*, bias, "H[features]");
  NESTED(Lora, adapters);
  STRIDE(int64_t, x_stride, x, 0);
  DIM(int, tokens);
  DIM(int, features);          // a multiple of 16
  DIM(int, k);                 // a multiple of 64
  ARG_OR(bool, gated, false);  // features = [gate | up], out = silu(gate) * up
};

// out = x weight^T + bias + (x down^T) up^T, each token with the matrices of its tile's slot.
cudaError_t lora_linear(const LoraLinear& linear, bool bf16, cudaStream_t stream);

struct ShrinkLora {
  ARGUMENTS(ShrinkLora);
  // kLoraSlices sums over k, written where the token's adapter has ranks.
  OUT(float*, low, "[4, tokens, parts*max_rank] 16");
  IN(const void*, x, "H[tokens, k] rows16");
  NESTED(Lora, adapters);
  STRIDE(int64_t, x_stride, x, 0);
  DIM(int, tokens);
  DIM(int, k);  // a multiple of 64
};

// low = x down^T, its sums over slices of k.
cudaError_t shrink_lora(const ShrinkLora& shrink, bool bf16, cudaStream_t stream);

struct ExpandLora {
  ARGUMENTS(ExpandLora);
  IN(void*, out, "H[tokens, features] 16");  // added to
  IN(const float*, low, "[4, tokens, parts*max_rank] 16");  // of shrink_lora
  NESTED(Lora, adapters);  // its parts begin and end at multiples of 8
  DIM(int, tokens);
  DIM(int, features);
};

// out += low up^T.
cudaError_t expand_lora(const ExpandLora& expand, bool bf16, cudaStream_t stream);

}  // namespace sluice
