// FP8 (e4m3) to and from the floats that are computed with.
#pragma once

#include <cuda_fp8.h>

#include "common/vector.cuh"

namespace sluice {

// x as e4m3, what is beyond its range at its ends.
__device__ __forceinline__ uint8_t to_e4m3(float x) {
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}

template <typename T>
struct alignas(Vector<T>::kSize) Fp8Vector {
  uint8_t x[Vector<T>::kSize];
};

// x * factor as e4m3.
template <typename T>
__device__ __forceinline__ Fp8Vector<T> to_e4m3(const Vector<T>& x, float factor) {
  Fp8Vector<T> stored;
#pragma unroll
  for (int i = 0; i < Vector<T>::kSize; i += 2) {
    const float2 pair = make_float2(to_float(x.x[i]) * factor, to_float(x.x[i + 1]) * factor);
    const __nv_fp8x2_storage_t two = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
    stored.x[i] = static_cast<uint8_t>(two);
    stored.x[i + 1] = static_cast<uint8_t>(two >> 8);
  }
  return stored;
}

}  // namespace sluice
