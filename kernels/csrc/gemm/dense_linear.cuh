// Interface of the GEMMs with weights of 16 bits (skinny_linear.cu, wide_linear.cu): raw pointers
// only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

#include "common/arguments.h"

namespace sluice {

constexpr int kMaxSkinnyTokens = 16;

struct DenseLinear {
  ARGUMENTS(DenseLinear);
  OUT(void*, out, "H[tokens, features/gated]");
  IN(const void*, x, "H[tokens, k] rows16");
  IN(const void*, weight, "H[features, k] 16");
  OPTIONAL(const void*, bias, "H[features]");
  STRIDE(int64_t, x_stride, x, 0);
  DIM(int, tokens);
  DIM(int, features);          // a multiple of 16
  DIM(int, k);                 // a multiple of 64
  ARG_OR(int, shape, 0);       // of a CTA's work: skinny its warps, wide its features; 0: 8, 256
  ARG_OR(bool, gated, false);  // features = [gate | up], out = silu(gate) * up
};

// out = x weight^T + bias for up to kMaxSkinnyTokens tokens, where reading the weight once is all
// that matters. shape: 4, 8 or 16 warps.
cudaError_t skinny_linear(const DenseLinear& linear, bool bf16, cudaStream_t stream);

// The same on Hopper for any number of tokens, best more than 16; rounds where the library's GEMM and silu_mul
// round. shape: 192 (of more than 1,024 tokens by 192 of them), 224 or 256 features.
cudaError_t wide_linear(const DenseLinear& linear, bool bf16, cudaStream_t stream);

}  // namespace sluice
