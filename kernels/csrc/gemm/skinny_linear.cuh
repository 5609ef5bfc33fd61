// Interface of skinny_linear.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

#include "common/arguments.h"

namespace sluice {

constexpr int kMaxSkinnyTokens = 16;

struct SkinnyLinear {
  ARGUMENTS(SkinnyLinear);
  OUT(void*, out, "H[tokens, features/gated]");
  IN(const void*, x, "H[tokens, k] rows16");
  IN(const void*, weight, "H[features, k] 16");
  OPTIONAL(const void*, bias, "H[features]");
  STRIDE(int64_t, x_stride, x, 0);
  DIM(int, tokens);         // at most kMaxSkinnyTokens
  DIM(int, features);       // a multiple of 16
  DIM(int, k);              // a multiple of 64
  ARG_OR(int, warps, 8);    // of a CTA: 4, 8 or 16
  ARG_OR(bool, gated, false);  // features = [gate | up], out = silu(gate) * up
};

// out = x weight^T + bias for few tokens, where reading the weight once is all that matters.
cudaError_t skinny_linear(const SkinnyLinear& linear, bool bf16, cudaStream_t stream);

}  // namespace sluice
