// Interface of quantized_linear.cu, tiled_fp8.cu and tiled_int4.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

#include "gemm/skinny_linear.cuh"

namespace sluice {

struct QuantizedLinear {
  void* out;           // [tokens, outputs], contiguous
  const void* x;       // [tokens, k], rows x_stride elements apart
  const void* weight;  // [features, k] in its format, contiguous, rows multiples of 64 bytes
  const void* scales;  // FP8: [features] float, or of blocks [features / block_rows,
                       // k / group_size], both rounded up; INT4: [features, k / group_size, 2]
                       // like x
  const float* x_scales;  // of x in FP8: [tokens]; with blocks [k / 128, tokens], with room for 64
                          // tokens and their multiples, x_scale_stride apart
  const void* bias;       // [features] like out, or null
  int64_t x_stride, x_scale_stride;
  int tokens;
  int features;    // a multiple of 16
  int k;           // a multiple of 64 (FP8) or 128 (INT4)
  int group_size;  // INT4: a multiple of 32; FP8 in blocks: of 64
  int block_rows;  // FP8 in blocks: features that share their scales; else 0
  bool gated;      // features = [gate | up], out = silu(gate) * up, outputs = features / 2
};

// As skinny_linear, the weights in e4m3 with a scale for each feature, or for each block; a lone
// token by quantized_gemv.cu.
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
