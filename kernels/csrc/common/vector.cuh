// 16-byte vectors of 16- or 32-bit floats, converted to and from fp32 for arithmetic.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <cstdint>

#include "common/dtype.h"

namespace sluice {

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) { return x; }
template <>
__device__ __forceinline__ __half from_float<__half>(float x) { return __float2half_rn(x); }
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// x rounded to T and back: where the reference rounds between two operations, so do we.
template <typename T>
__device__ __forceinline__ float rounded(float x) { return to_float(from_float<T>(x)); }

// 16 bytes that nobody reads again.
__device__ __forceinline__ uint4 load_once(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

template <typename T>
struct alignas(16) Vector {
  static constexpr int kSize = 16 / sizeof(T);
  T x[kSize];
};

// Weights that multiply a vector: of its own type or, kWide, float32.
template <typename T, bool kWide>
struct VectorWeights {
  Vector<T> own;

  static __device__ __forceinline__ VectorWeights load(const void* weights, int vector) {
    return {static_cast<const Vector<T>*>(weights)[vector]};
  }
  __device__ __forceinline__ float operator[](int e) const { return to_float(own.x[e]); }
};

template <typename T>
struct VectorWeights<T, true> {
  static constexpr int kParts = sizeof(float) / sizeof(T);
  Vector<float> parts[kParts];

  static __device__ __forceinline__ VectorWeights load(const void* weights, int vector) {
    VectorWeights made;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      made.parts[i] = static_cast<const Vector<float>*>(weights)[vector * kParts + i];
    }
    return made;
  }
  __device__ __forceinline__ float operator[](int e) const { return parts[e / 4].x[e % 4]; }
};

// x normed by `scale`, times a weight: as the reference, which multiplies by a wide one before it
// rounds.
template <typename T, bool kWide>
__device__ __forceinline__ float weighted(float x, float scale, float weight) {
  return (kWide ? x * scale : rounded<T>(x * scale)) * weight;
}

template <typename T>
struct Type {
  using type = T;
};

// launch(Type<T>{}) for the element type T that `dtype` names.
template <typename Launch>
cudaError_t with_type(Dtype dtype, Launch&& launch) {
  switch (dtype) {
    case Dtype::kFloat32:
      return launch(Type<float>{});
    case Dtype::kFloat16:
      return launch(Type<__half>{});
    case Dtype::kBfloat16:
      return launch(Type<__nv_bfloat16>{});
  }
  return cudaErrorInvalidValue;
}

}  // namespace sluice
