// Interface of rounded_rows.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

#include "vector.cuh"

namespace sluice {

// Rows rounded to e4m3, each with what its elements were divided by: its largest one over 448, or
// 1e-12. Their width is a multiple of 16 bytes of the type they are made in, at most 64 KiB.
struct RoundedRows {
  void* out;      // [rows, width] e4m3
  float* scales;  // [rows]
  int rows, width;
};

// Of x [rows, width], rows x_stride elements apart.
cudaError_t round_rows(const RoundedRows& rounded, const void* x, int64_t x_stride, Dtype dtype,
                       cudaStream_t stream);

// Of what rms_norm makes of x and the residual, which it adds to.
cudaError_t rms_norm_rounded(const RoundedRows& rounded, const void* x, void* residual,
                             const void* weight, int64_t x_stride, float eps, Dtype dtype,
                             cudaStream_t stream);

// Of what silu_mul makes of x [rows, 2 * width].
cudaError_t silu_mul_rounded(const RoundedRows& rounded, const void* x, Dtype dtype,
                             cudaStream_t stream);

}  // namespace sluice
