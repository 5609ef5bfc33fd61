// Rows of which threads hold 16 bytes at a time in registers: their norm and their gating.
#pragma once

#include "common/dependent_launch.cuh"
#include "common/reduce.cuh"
#include "common/vector.cuh"
#include "norm_rope/layer_ops.cuh"

namespace sluice {

constexpr int kRowVectors = 4;  // most of a row that one thread holds

inline int row_threads(int vectors) { return min(1024, (vectors + 31) / 32 * 32); }

// A maximum only of what is not negative: lanes beyond the last warp bring 0.
template <float (*kAcrossWarp)(float)>
__device__ __forceinline__ float across_block(float x) {
  __shared__ float warps[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  x = kAcrossWarp(x);
  if (lane == 0) warps[warp] = x;
  __syncthreads();
  x = lane < blockDim.x / 32 ? warps[lane] : 0.f;
  return kAcrossWarp(x);
}

__device__ __forceinline__ float block_sum(float x) { return across_block<warp_sum>(x); }
__device__ __forceinline__ float block_max(float x) { return across_block<warp_max>(x); }

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

// The row blockIdx.x of what p describes; a thread holds vectors threadIdx.x, + blockDim.x, ...
template <bool kWide, typename T, int kVectors>
__device__ __forceinline__ void normed_row(Vector<T> (&values)[kVectors], const RmsNorm& p) {
  using V = Vector<T>;
  using W = VectorWeights<T, kWide>;
  const int vectors = p.width / V::kSize;
  constexpr bool kEarly = kVectors == 1;  // more would not fit into registers
  W early;                                // a weight comes from memory, and no kernel makes it
  if (kEarly && threadIdx.x < vectors) early = W::load(p.weight, threadIdx.x);
  wait_for_inputs();
  allow_next();
  const int64_t row = blockIdx.x;
  const V* src = reinterpret_cast<const V*>(static_cast<const T*>(p.x) + row * p.x_stride);
  V* sum = p.residual ? static_cast<V*>(p.residual) + row * vectors : nullptr;
  auto each = [&](auto&& work) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int i = j * blockDim.x + threadIdx.x;
      if (i < vectors) work(values[j], i);
    }
  };
  float squares = 0.f;
  auto add_squares = [&](const V& value) {
#pragma unroll
    for (int e = 0; e < V::kSize; ++e) {
      const float f = to_float(value.x[e]);
      squares += f * f;
    }
  };
  auto multiply = [&](V& value, float scale, const W& w) {
#pragma unroll
    for (int e = 0; e < V::kSize; e += 2) {
      store_two(value.x + e, weighted<T, kWide>(to_float(value.x[e]), scale, w[e]),
                weighted<T, kWide>(to_float(value.x[e + 1]), scale, w[e + 1]));
    }
  };
  each([&](V& value, int i) { value = src[i]; });
  if (p.inner) {
    each([&](V& value, int) { add_squares(value); });
    const float scale = rsqrtf(block_sum(squares) / p.width + p.eps);
    each([&](V& value, int i) { multiply(value, scale, W::load(p.inner, i)); });
    squares = 0.f;
    __syncthreads();  // all have read the first sum
  }
  each([&](V& value, int i) {
    if (sum) {
      const V before = sum[i];
#pragma unroll
      for (int e = 0; e < V::kSize; e += 2) {
        store_two(value.x + e, to_float(value.x[e]) + to_float(before.x[e]),
                  to_float(value.x[e + 1]) + to_float(before.x[e + 1]));
      }
      sum[i] = value;
    }
    add_squares(value);
  });
  const float scale = rsqrtf(block_sum(squares) / p.width + p.eps);
  each([&](V& value, int i) { multiply(value, scale, kEarly ? early : W::load(p.weight, i)); });
}

template <Activation kActivation>
__device__ __forceinline__ float activated(float x) {
  if constexpr (kActivation == Activation::kSilu) return x / (1.f + __expf(-x));
  // x / 2 * (1 + tanh(y)) is x * sigmoid(2 y).
  const float y = 0.7978845608f * (x + 0.044715f * x * x * x);
  return x / (1.f + __expf(-2.f * y));
}

// By value: loads of references would be made element by element.
template <Activation kActivation, typename T>
__device__ __forceinline__ Vector<T> gated(const Vector<T> gate, const Vector<T> up) {
  Vector<T> y;
#pragma unroll
  for (int e = 0; e < Vector<T>::kSize; e += 2) {
    alignas(8) T active[2];
    store_two(active, activated<kActivation>(to_float(gate.x[e])),
              activated<kActivation>(to_float(gate.x[e + 1])));
    store_two(y.x + e, to_float(active[0]) * to_float(up.x[e]),
              to_float(active[1]) * to_float(up.x[e + 1]));
  }
  return y;
}

}  // namespace sluice
