// A warp's part in the product of 16 rows of a weight with up to 8 tokens: 64 elements of k at a
// time go from memory straight into the registers of the tensor-core instruction (see
// skinny_linear.cu).
#pragma once

#include "common/mma.cuh"
#include "common/vector.cuh"

namespace sluice {

constexpr int kWeightChunk = 64;  // elements of k

// A chunk of rows g and g + 8, g = lane / 4: this lane's 8 elements of each of its two halves.
struct WeightRows {
  uint4 low[2], high[2];

  // Of the rows where this lane's elements begin.
  __device__ __forceinline__ void load(const void* low_row, const void* high_row) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      low[half] = load_once(static_cast<const uint4*>(low_row) + half * 4);
      high[half] = load_once(static_cast<const uint4*>(high_row) + half * 4);
    }
  }

  // sum: rows g, g, g + 8, g + 8 of tokens 2 t, 2 t + 1, where t = lane % 4. x: the same elements
  // of token g, or null.
  template <typename T>
  __device__ __forceinline__ void multiply(float (&sum)[4], const T* x) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 v = x ? *reinterpret_cast<const uint4*>(x + half * 32) : make_uint4(0, 0, 0, 0);
      const uint4 a = low[half], b = high[half];
      Half<T>::mma(sum, {a.x, b.x, a.y, b.y}, v.x, v.y);
      Half<T>::mma(sum, {a.z, b.z, a.w, b.w}, v.z, v.w);
    }
  }
};

}  // namespace sluice
