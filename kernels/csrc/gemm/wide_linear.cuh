// Interface of wide_linear.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

namespace sluice {

struct WideLinear {
  void* out;           // [tokens, outputs], contiguous
  const void* x;       // [tokens, k], rows x_stride elements apart
  const void* weight;  // [features, k], contiguous
  const void* bias;    // [features] or null
  int64_t x_stride;
  int tokens;
  int features;  // a multiple of 16
  int k;         // a multiple of 64
  bool gated;    // features = [gate | up], out = silu(gate) * up, outputs = features / 2
  int width;     // features of a tile: 192 (of many tokens by 192 of them), 224 or 256
};

// out = x weight^T + bias, rounded where the library's product and silu_mul round. sm_90 only.
cudaError_t wide_linear(const WideLinear& linear, bool bf16, cudaStream_t stream);

}  // namespace sluice
