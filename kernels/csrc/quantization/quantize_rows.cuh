// Interface of quantize_rows.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

#include "norm_rope/layer_ops.cuh"

namespace sluice {

// Rows rounded to e4m3, each with what its elements were divided by: its largest one over 448, or
// 1e-12. Their width is a multiple of 16 bytes of the type they are made in, at most 64 KiB.
struct RoundedRows {
  void* out;      // [rows, width] e4m3
  float* scales;  // [rows]
  int rows, width;
};

struct RoundRows {
  ARGUMENTS(RoundRows);
  OUT(void*, out, "e4m3[rows, width]");
  OUT(float*, scales, "[rows, 1]");
  IN(const void*, x, "T[rows, width] rows16");
  STRIDE(int64_t, x_stride, x, 0);
  DIM(int, rows);
  DIM(int, width);
};

struct RmsNormRounded {
  ARGUMENTS(RmsNormRounded);
  OUT(void*, out, "e4m3[rows, width]");
  OUT(float*, scales, "[rows, 1]");
  IN(const void*, x, "T[rows, width] rows16");
  IN(const void*, weight, "T[width] 16");
  ARG(float, eps);
  OPTIONAL(void*, residual, "T[rows, width] 16");
  STRIDE(int64_t, x_stride, x, 0);
  DIM(int, rows);
  DIM(int, width);
};

struct SiluMulRounded {
  ARGUMENTS(SiluMulRounded);
  OUT(void*, out, "e4m3[rows, width]");
  OUT(float*, scales, "[rows, 1]");
  IN(const void*, x, "T[rows, 2*width] 16");
  DIM(int, rows);
  DIM(int, width);
};

// The rows of x, x_stride elements apart.
cudaError_t round_rows(const RoundedRows& rounded, const void* x, int64_t x_stride, Dtype dtype,
                       cudaStream_t stream);

// What rms_norm would leave in its out, which may be null; its weights are of x's type.
cudaError_t rms_norm_rounded(const RoundedRows& rounded, const RmsNorm& norm, Dtype dtype,
                             cudaStream_t stream);

// What gated_mul makes of x [rows, 2 * width] with silu.
cudaError_t silu_mul_rounded(const RoundedRows& rounded, const void* x, Dtype dtype,
                             cudaStream_t stream);

}  // namespace sluice
