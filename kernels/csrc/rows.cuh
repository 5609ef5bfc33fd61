// Rows that one CTA holds in registers, 16 bytes at a time: their norm and their gating.
#pragma once

#include "dependent_launch.cuh"
#include "vector.cuh"

namespace sluice {

constexpr int kRowVectors = 4;  // most of a row that one thread holds

inline int row_threads(int vectors) { return min(1024, (vectors + 31) / 32 * 32); }

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(~0u, x, d);
  return x;
}

__device__ __forceinline__ float block_sum(float x) {
  __shared__ float sums[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  x = warp_sum(x);
  if (lane == 0) sums[warp] = x;
  __syncthreads();
  x = lane < blockDim.x / 32 ? sums[lane] : 0.f;
  return warp_sum(x);
}

// Two neighbours, rounded by one instruction: one by one they take more time than their arithmetic.
template <typename T>
__device__ __forceinline__ void store_two(T* to, float a, float b) {
  to[0] = from_float<T>(a);
  to[1] = from_float<T>(b);
}
template <>
__device__ __forceinline__ void store_two(__nv_bfloat16* to, float a, float b) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}
template <>
__device__ __forceinline__ void store_two(__half* to, float a, float b) {
  *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}

// RMSNorm of a row of x, or of its sum with the residual, which the residual then holds.
template <typename T>
struct Norm {
  using V = Vector<T>;

  const T* x;
  T* residual;  // or null
  const T* weight;
  int width;
  int64_t x_stride;
  float eps;

  __host__ __device__ int vectors() const { return width / V::kSize; }

  // What this thread holds of the row: vectors threadIdx.x, + blockDim.x and so on.
  template <int kVectors>
  __device__ __forceinline__ void make(V (&values)[kVectors], int64_t row) const {
    constexpr bool kEarly = kVectors == 1;  // more would not fit into registers
    V early;                                // a weight comes from memory, and no kernel makes it
    if (kEarly && threadIdx.x < vectors()) early = reinterpret_cast<const V*>(weight)[threadIdx.x];
    wait_for_inputs();
    allow_next();
    const V* src = reinterpret_cast<const V*>(x + row * x_stride);
    V* sum = residual ? reinterpret_cast<V*>(residual + row * width) : nullptr;
    float squares = 0.f;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int i = j * blockDim.x + threadIdx.x;
      if (i >= vectors()) break;
      values[j] = src[i];
      if (sum) {
        const V before = sum[i];
#pragma unroll
        for (int e = 0; e < V::kSize; e += 2) {
          store_two(values[j].x + e, to_float(values[j].x[e]) + to_float(before.x[e]),
                    to_float(values[j].x[e + 1]) + to_float(before.x[e + 1]));
        }
        sum[i] = values[j];
      }
#pragma unroll
      for (int e = 0; e < V::kSize; ++e) {
        const float f = to_float(values[j].x[e]);
        squares += f * f;
      }
    }
    const float scale = rsqrtf(block_sum(squares) / width + eps);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int i = j * blockDim.x + threadIdx.x;
      if (i >= vectors()) break;
      const V w = kEarly ? early : reinterpret_cast<const V*>(weight)[i];
#pragma unroll
      for (int e = 0; e < V::kSize; e += 2) {
        alignas(8) T normal[2];
        store_two(normal, to_float(values[j].x[e]) * scale, to_float(values[j].x[e + 1]) * scale);
        store_two(values[j].x + e, to_float(normal[0]) * to_float(w.x[e]),
                  to_float(normal[1]) * to_float(w.x[e + 1]));
      }
    }
  }
};

// By value: loads of references would be made element by element.
template <typename T>
__device__ __forceinline__ Vector<T> silu_mul(const Vector<T> gate, const Vector<T> up) {
  Vector<T> y;
#pragma unroll
  for (int e = 0; e < Vector<T>::kSize; e += 2) {
    const float g = to_float(gate.x[e]), h = to_float(gate.x[e + 1]);
    alignas(8) T silu[2];
    store_two(silu, g / (1.f + __expf(-g)), h / (1.f + __expf(-h)));
    store_two(y.x + e, to_float(silu[0]) * to_float(up.x[e]),
              to_float(silu[1]) * to_float(up.x[e + 1]));
  }
  return y;
}

}  // namespace sluice
