// Interface of wide_linear.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

#include "common/arguments.h"

namespace sluice {

struct WideLinear {
  ARGUMENTS(WideLinear);
  OUT(void*, out, "H[tokens, features/gated]");
  IN(const void*, x, "H[tokens, k] rows16");
  IN(const void*, weight, "H[features, k] 16");
  OPTIONAL(const void*, bias, "H[features]");
  STRIDE(int64_t, x_stride, x, 0);
  DIM(int, tokens);
  DIM(int, features);          // a multiple of 16
  DIM(int, k);                 // a multiple of 64
  ARG_OR(bool, gated, false);  // features = [gate | up], out = silu(gate) * up
  ARG_OR(int, width, 256);  // features of a tile: 192 (of many tokens by 192 of them), 224 or 256
};

// out = x weight^T + bias, rounded where the library's product and silu_mul round. sm_90 only.
cudaError_t wide_linear(const WideLinear& linear, bool bf16, cudaStream_t stream);

}  // namespace sluice
