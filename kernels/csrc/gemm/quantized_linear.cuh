// Interface of quantized_linear.cu, tiled_fp8.cu and tiled_int4.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

#include "gemm/dense_linear.cuh"

namespace sluice {

struct QuantizedLinear {
  ARGUMENTS(QuantizedLinear);
  OUT(void*, out, "H[tokens, features/gated]");
  IN(const void*, x, "H|e4m3[tokens, k] rows16");
  IN(const void*, weight, "e4m3|i32[features, _] 16");  // [features, k], or k / 8 for four bits
  // FP8: [features] float, or of blocks [features / block_rows, k / group_size], both rounded up;
  // INT4: [features, k / group_size, 2] like x.
  IN(const void*, scales, "f32|H[*]");
  OPTIONAL(const void*, bias, "H[features]");
  // Of x in FP8: [tokens]; with blocks [k / 128, tokens], with room for 64 tokens and their
  // multiples, x_scale_stride apart.
  OPTIONAL(const float*, x_scales, "[_, _] rows");
  STRIDE(int64_t, x_stride, x, 0);
  STRIDE(int64_t, x_scale_stride, x_scales, 0);
  DIM(int, tokens);
  DIM(int, features);         // a multiple of 16
  DIM(int, k);                // a multiple of 64 (FP8) or 128 (INT4)
  ARG_OR(int, group_size, 0);  // FP8 in blocks: a multiple of 64; INT4: of 32, from the scales
  ARG_OR(int, block_rows, 0);  // FP8 in blocks: features that share their scales; else 0
  ARG_OR(bool, gated, false);  // features = [gate | up], out = silu(gate) * up
  ARG_OR(int, split, 0);  // tiled: CTAs that share the sum over k, at most 8 and k / 128; 0: as
                          // many as seem best
};

constexpr int kMaxGemvK = 32768;  // x lies in shared memory

// skinny_fp8_linear and skinny_int4_linear of one token (quantized_gemv.cu); they call it.
cudaError_t fp8_gemv(const QuantizedLinear& linear, bool bf16, cudaStream_t stream);
cudaError_t int4_gemv(const QuantizedLinear& linear, bool bf16, cudaStream_t stream);

inline bool is_gemv(const QuantizedLinear& linear) {
  return linear.tokens == 1 && linear.k <= kMaxGemvK;
}

// As skinny_linear, the weights in e4m3 with a scale for each feature, or for each block.
cudaError_t skinny_fp8_linear(const QuantizedLinear& linear, bool bf16, cudaStream_t stream);

// As skinny_linear, the weights in four bits: (nibble - zero) * scale, both of a group, in the
// order of widen.cuh.
cudaError_t skinny_int4_linear(const QuantizedLinear& linear, bool bf16, cudaStream_t stream);

// Both rounded to e4m3, x with a scale for each token, on Hopper: as tiled_int4_linear.
cudaError_t tiled_fp8_linear(const QuantizedLinear& linear, int split, bool bf16,
                             cudaStream_t stream);

// As skinny_int4_linear on Hopper, for any number of tokens, best some dozens; groups of 32, 64 or
// a multiple of 128. split: CTAs that share the sum over k, at most 8 and k / 128; 0: as seems
// best.
cudaError_t tiled_int4_linear(const QuantizedLinear& linear, int split, bool bf16,
                              cudaStream_t stream);

}  // namespace sluice
