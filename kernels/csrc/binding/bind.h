// What the bindings share. They alone include torch's headers: everything else in this folder takes
// raw pointers. Arguments are checked in the bindings, once.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "common/vector.cuh"

namespace sluice {

inline void check(cudaError_t error, const char* what) {
  TORCH_CHECK(error == cudaSuccess, what, ": ", cudaGetErrorString(error));
}

inline void check_int32(const at::Tensor& t, const char* name) {
  TORCH_CHECK(t.is_cuda() && t.scalar_type() == at::kInt && t.is_contiguous(), name,
              " must be a contiguous int32 CUDA tensor");
}

// Of what is read or written 16 bytes at a time; views of a tensor may begin anywhere.
inline void check_start(const at::Tensor& t, const char* name) {
  TORCH_CHECK(reinterpret_cast<uintptr_t>(t.data_ptr()) % 16 == 0, name,
              " must start at a multiple of 16 bytes");
}

inline Dtype dtype_of(const at::Tensor& t, const char* name) {
  switch (t.scalar_type()) {
    case at::kFloat:
      return Dtype::kFloat32;
    case at::kHalf:
      return Dtype::kFloat16;
    case at::kBFloat16:
      return Dtype::kBfloat16;
    default:
      TORCH_CHECK(false, name, " must be float32, float16 or bfloat16, got ", t.scalar_type());
  }
}

// Whether a cache is in FP8, which it is if there are scales; both are checked.
inline bool check_fp8(const at::Tensor& k_cache, const at::Tensor& v_cache,
                      const std::optional<at::Tensor>& k_scale,
                      const std::optional<at::Tensor>& v_scale) {
  TORCH_CHECK(k_scale.has_value() == v_scale.has_value(), "k_scale and v_scale go together");
  if (!k_scale) return false;
  for (const at::Tensor& cache : {k_cache, v_cache}) {
    TORCH_CHECK(cache.scalar_type() == at::kFloat8_e4m3fn, "a cache with scales must be "
                "float8_e4m3fn, got ", cache.scalar_type());
  }
  for (const at::Tensor& scale : {*k_scale, *v_scale}) {
    TORCH_CHECK(scale.is_cuda() && scale.scalar_type() == at::kFloat && scale.is_contiguous() &&
                    scale.numel() == k_cache.size(2),
                "k_scale and v_scale must be contiguous float32 [", k_cache.size(2), "]");
  }
  return true;
}

}  // namespace sluice
