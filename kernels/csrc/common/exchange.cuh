// How the CTAs of one launch hand values to each other. A place where nothing is yet holds ones in
// all its bits, which no value does that the GPU's instructions make (their NaNs are others); who
// reads a place asks again until it holds something else. So a value costs one way to the L2 and
// one back: no fence, no count, and nobody waits for more than it needs. As NCCL's LL protocol, but
// without its flags.
#pragma once

#include <cstdint>

#include "common/spin_limit.cuh"
#include "common/vector.cuh"

namespace sluice {

// Of elements of 16 bits, two in a word.
__device__ __forceinline__ uint32_t greatest(uint32_t a, uint32_t b, uint32_t c) {
  return __vimax3_u16x2(a, b, c);
}

// Whether one of the elements is not there yet; greatest: of all words.
__device__ __forceinline__ bool lacks_half(uint32_t greatest) {
  return greatest >= 0xffff0000u || (greatest & 0xffffu) == 0xffffu;
}

__device__ __forceinline__ bool lacks(float x) { return __float_as_uint(x) == 0xffffffffu; }
__device__ __forceinline__ bool lacks(float2 a, float4 b) {
  const auto bits = [](float x) { return __float_as_uint(x); };
  const uint32_t greatest = __vimax3_u32(bits(a.x), bits(a.y), bits(b.x));
  return __vimax3_u32(greatest, max(bits(b.y), bits(b.z)), bits(b.w)) == 0xffffffffu;
}

template <typename T>
__device__ __forceinline__ void hand_over(T* to, T x) {
  static_assert(sizeof(T) == 2);
  asm volatile("st.relaxed.gpu.global.b16 [%0], %1;" ::"l"(to),
               "h"(reinterpret_cast<const uint16_t&>(x))
               : "memory");
}

// Two elements of 16 bits.
__device__ __forceinline__ void hand_over(uint32_t* to, uint32_t x) {
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}

__device__ __forceinline__ void hand_over(float* to, float x) {
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
}

__device__ __forceinline__ void hand_over(float2* to, float2 x) {
  asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x.x), "f"(x.y)
               : "memory");
}

__device__ __forceinline__ void hand_over(float4* to, float4 x) {
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x.x),
               "f"(x.y), "f"(x.z), "f"(x.w)
               : "memory");
}

// What is there now.
__device__ __forceinline__ void look(uint32_t (&at)[4], const void* from) {
  asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(at[0]), "=r"(at[1]), "=r"(at[2]), "=r"(at[3])
               : "l"(from)
               : "memory");
}

__device__ __forceinline__ void look(float& x, const float* from) {
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(x) : "l"(from) : "memory");
}

__device__ __forceinline__ void look(float2& x, const float2* from) {
  asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];"
               : "=f"(x.x), "=f"(x.y)
               : "l"(from)
               : "memory");
}

// If `condition` holds; else x stays as it is.
__device__ __forceinline__ void look_if(bool condition, float2& x, const float2* from) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %3, 0; @p ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];}"
      : "+f"(x.x), "+f"(x.y)
      : "l"(from), "r"(static_cast<int>(condition))
      : "memory");
}
__device__ __forceinline__ void look_if(bool condition, float4& x, const float4* from) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %5, 0; "
      "@p ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];}"
      : "+f"(x.x), "+f"(x.y), "+f"(x.z), "+f"(x.w)
      : "l"(from), "r"(static_cast<int>(condition))
      : "memory");
}

// Eight elements.
__device__ __forceinline__ uint32_t greatest_of(const uint32_t (&words)[4]) {
  return greatest(greatest(words[0], words[1], words[2]), words[3], 0);
}

// The next number of a count that begins with ones in all its bits: 0, 1, 2 ...
__device__ __forceinline__ int claim(int* count) {
  int before;
  asm volatile("atom.relaxed.gpu.global.add.s32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(count)
               : "memory");
  return before + 1;
}

// Nothing is there any more: for 16 bytes.
__device__ __forceinline__ void empty(void* at) {
  asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %1, %1, %1};" ::"l"(at), "r"(0xffffffffu)
               : "memory");
}

// For 8 bytes.
__device__ __forceinline__ void empty(float2* at) {
  asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1, %1};" ::"l"(at), "r"(0xffffffffu)
               : "memory");
}

}  // namespace sluice
