// Interface of skinny_linear.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

namespace sluice {

constexpr int kMaxSkinnyTokens = 16;

struct SkinnyLinear {
  void* out;           // [tokens, outputs], contiguous
  const void* x;       // [tokens, k], rows x_stride elements apart
  const void* weight;  // [features, k], contiguous
  const void* bias;    // [features] or null
  int64_t x_stride;
  int tokens;    // at most kMaxSkinnyTokens
  int features;  // a multiple of 16
  int k;         // a multiple of 64
  int warps;     // of a CTA: 4, 8 or 16
  bool gated;    // features = [gate | up], out = silu(gate) * up, outputs = features / 2
};

// out = x weight^T + bias for few tokens, where reading the weight once is all that matters.
cudaError_t skinny_linear(const SkinnyLinear& linear, bool bf16, cudaStream_t stream);

}  // namespace sluice
