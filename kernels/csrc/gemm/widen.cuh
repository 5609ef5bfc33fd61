// From weights of eight or four bits to 16-bit floats, two at a time, by moving bits into place:
// exponents come out too small by a constant factor (FP8), or integers as the mantissa of a power
// of two (INT4). From e4m3 to float16 there is an instruction (sm_89).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cstdint>
#include <type_traits>

namespace sluice {

template <typename T>
struct Pair;  // two 16-bit floats in a word

template <>
struct Pair<__nv_bfloat16> {
  static constexpr int kFp8Shift = 4;
  static constexpr uint32_t kFp8Bits = 0x07f007f0;
  static constexpr uint32_t kFp8Factor = 0x7b807b80;  // 2^120
  static constexpr uint32_t kInteger = 0x43004300;    // 128, whose last bit is worth 1
  using Two = __nv_bfloat162;
};

template <>
struct Pair<__half> {
  static constexpr int kFp8Shift = 1;
  static constexpr uint32_t kFp8Bits = 0x3f803f80;
  static constexpr uint32_t kFp8Factor = 0x5c005c00;  // 2^8
  static constexpr uint32_t kInteger = 0x64006400;    // 1024
  using Two = __half2;
};

template <typename T>
__device__ __forceinline__ uint32_t times(uint32_t a, uint32_t b) {
  using Two = typename Pair<T>::Two;
  Two v = __hmul2(reinterpret_cast<Two&>(a), reinterpret_cast<Two&>(b));
  return reinterpret_cast<uint32_t&>(v);
}

template <typename T>
__device__ __forceinline__ uint32_t plus(uint32_t a, uint32_t b) {
  using Two = typename Pair<T>::Two;
  Two v = __hadd2(reinterpret_cast<Two&>(a), reinterpret_cast<Two&>(b));
  return reinterpret_cast<uint32_t&>(v);
}

template <typename T>
__device__ __forceinline__ uint32_t minus(uint32_t a, uint32_t b) {
  using Two = typename Pair<T>::Two;
  Two v = __hsub2(reinterpret_cast<Two&>(a), reinterpret_cast<Two&>(b));
  return reinterpret_cast<uint32_t&>(v);
}

// Bytes 0 and 1, or 2 and 3, of a word in e4m3.
template <typename T>
__device__ __forceinline__ uint32_t widen_fp8(uint32_t word, bool upper) {
#if __CUDA_ARCH__ >= 890
  if constexpr (std::is_same_v<T, __half>) {
    uint32_t two;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;"
        : "=r"(two)
        : "h"(static_cast<uint16_t>(upper ? word >> 16 : word)));
    return two;
  }
#endif
  // Into the upper bytes of the two halves.
  const uint32_t spread = __byte_perm(word, 0, upper ? 0x3424 : 0x1404);
  const uint32_t small =
      (spread & 0x80008000) | ((spread >> Pair<T>::kFp8Shift) & Pair<T>::kFp8Bits);
  return times<T>(small, Pair<T>::kFp8Factor);
}

__device__ __forceinline__ uint32_t word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// The i-th eight of sixteen numbers in e4m3 that follow each other.
template <typename T>
__device__ __forceinline__ void widen_fp8(uint32_t (&out)[4], const uint4& v, int i) {
#pragma unroll
  for (int j = 0; j < 4; ++j) out[j] = widen_fp8<T>(word(v, 2 * i + j / 2), j % 2);
}

// What weights of four bits share: a scale and a zero point, as they are stored in one word.
//
// Of 32 inputs that follow each other, word t = 0..3 holds 8 i + 2 t in its i-th nibble and
// 8 i + 2 t + 1 in the i-th of its upper half. So a thread with all four words has 32 inputs in a
// row, and a quad of threads with a word each has what tensor cores want of 16 at a time.
template <typename T>
class Int4Group {
 public:
  explicit __device__ __forceinline__ Int4Group(uint32_t stored) {
    scale = __byte_perm(stored, stored, 0x1010);
    zero = plus<T>(__byte_perm(stored, stored, 0x3232), Pair<T>::kInteger);
  }

  // The i-th pair of a word, as dequantized weights, rounded once.
  __device__ __forceinline__ uint32_t widen(uint32_t word, int i) const {
    uint32_t whole = (word >> 4 * i & 0x000f000f) | Pair<T>::kInteger;
#ifdef __CUDA_ARCH__  // where the compiler makes two instructions of that
    asm("lop3.b32 %0, %1, 0x000f000f, %2, 0xea;"
        : "=r"(whole)
        : "r"(word >> 4 * i), "r"(Pair<T>::kInteger));
#endif
    return times<T>(minus<T>(whole, zero), scale);
  }

 private:
  uint32_t scale, zero;
};

// The i-th eight of 32 weights in four bits that follow each other: a pair of each word.
template <typename T>
__device__ __forceinline__ void widen_int4(uint32_t (&out)[4], const uint4& v, int i,
                                           uint32_t group) {
  const Int4Group<T> of(group);
#pragma unroll
  for (int j = 0; j < 4; ++j) out[j] = of.widen(word(v, j), i);
}

}  // namespace sluice
