// Interface of quantized_gemv.cu: raw pointers only.
#pragma once

#include "gemm/quantized_linear.cuh"

namespace sluice {

constexpr int kMaxOneTokenK = 32768;  // x lies in shared memory

// skinny_fp8_linear and skinny_int4_linear of one token, k at most kMaxOneTokenK; they call it.
cudaError_t one_token_fp8_linear(const QuantizedLinear& linear, bool bf16, cudaStream_t stream);
cudaError_t one_token_int4_linear(const QuantizedLinear& linear, bool bf16, cudaStream_t stream);

inline bool is_one_token(const QuantizedLinear& linear) {
  return linear.tokens == 1 && linear.k <= kMaxOneTokenK;
}

}  // namespace sluice
