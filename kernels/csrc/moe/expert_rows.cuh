// A lane's part in the product of 16 rows of an expert's matrix with one token, a chunk of k at a
// time, in each format that experts are stored in.
#pragma once

#include "common/mma.cuh"
#include "common/vector.cuh"
#include "gemm/widen.cuh"
#include "moe/expert_linear.cuh"
#include "moe/weight_rows.cuh"

namespace sluice {

// Where the scales of a row begin: one word each, for group_size elements of k.
__device__ __forceinline__ const uint32_t* scales_of(const ExpertScales& scales, int64_t expert,
                                                     int feature, int features, int k) {
  const int rows = (features + scales.block_rows - 1) / scales.block_rows;
  const int columns = (k + scales.group_size - 1) / scales.group_size;
  const int64_t row = expert * rows + feature / scales.block_rows;
  return static_cast<const uint32_t*>(scales.scales) + row * columns;
}

template <typename T>
struct PlainExpert {
  static constexpr int kChunk = kWeightChunk;
  static constexpr int kChunkBytes = kChunk * sizeof(T);
  static constexpr int kElements = 8;  // of k, in a row of a lane's
  static constexpr bool kIsScaled = false;

  WeightRows rows;

  // Of the rows where this lane's bytes begin; the scales are those of the chunk, if there are any.
  __device__ __forceinline__ void load(const void* low_row, const void* high_row, const uint32_t*,
                                       const uint32_t*) {
    rows.load(low_row, high_row);
  }

  // sum[0], sum[2]: rows g and g + 8 of the token, in lanes with t == 0. x: for g == 0 the same
  // elements of the token, else null.
  __device__ __forceinline__ void multiply(float (&sum)[4], const T* x) const {
    rows.multiply(sum, x);
  }
};

// Eight or four bits: 16 bytes of each row, widened eight elements at a time.
template <typename T, typename Format>
struct PackedExpert {
  static constexpr int kChunkBytes = 64;
  static constexpr bool kIsScaled = true;

  uint4 low, high;
  uint32_t low_scale, high_scale;

  __device__ __forceinline__ void load(const void* low_row, const void* high_row,
                                       const uint32_t* low_at, const uint32_t* high_at) {
    low = load_once(low_row);
    high = load_once(high_row);
    low_scale = __ldg(low_at);
    high_scale = __ldg(high_at);
  }

  __device__ __forceinline__ void add_up(float (&sum)[4], const T* x) const {
#pragma unroll
    for (int i = 0; i < Format::kElements / 8; ++i) {
      uint32_t a[4], b[4];
      Format::widen(a, low, i, low_scale);
      Format::widen(b, high, i, high_scale);
      const uint4 v = x ? reinterpret_cast<const uint4*>(x)[i] : make_uint4(0, 0, 0, 0);
      Half<T>::mma(sum, {a[0], b[0], a[1], b[1]}, v.x, v.y);
      Half<T>::mma(sum, {a[2], b[2], a[3], b[3]}, v.z, v.w);
    }
  }
};

template <typename T>
struct Fp8Expert : PackedExpert<T, Fp8Expert<T>> {
  static constexpr int kChunk = 64;
  static constexpr int kElements = 16;

  static __device__ __forceinline__ void widen(uint32_t (&out)[4], const uint4& v, int i,
                                               uint32_t) {
    widen_fp8<T>(out, v, i);
  }

  __device__ __forceinline__ void multiply(float (&sum)[4], const T* x) const {
    float made[4] = {};
    this->add_up(made, x);
    sum[0] += made[0] * __uint_as_float(this->low_scale);
    sum[2] += made[2] * __uint_as_float(this->high_scale);
  }
};

template <typename T>
struct Int4Expert : PackedExpert<T, Int4Expert<T>> {
  static constexpr int kChunk = 128;
  static constexpr int kElements = 32;

  static __device__ __forceinline__ void widen(uint32_t (&out)[4], const uint4& v, int i,
                                               uint32_t group) {
    widen_int4<T>(out, v, i, group);
  }

  __device__ __forceinline__ void multiply(float (&sum)[4], const T* x) const {
    this->add_up(sum, x);
  }
};

}  // namespace sluice
