// Words of 32 bits with a flag beside each: 8 bytes that one GPU writes at once and another one reads
// at once.
#pragma once

#include <cstdint>

namespace sluice {

__device__ __forceinline__ void send(void* to, uint32_t a, uint32_t b, uint32_t flag) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %3, %2, %3};" ::"l"(to), "r"(a), "r"(b),
               "r"(flag)
               : "memory");
}

__device__ __forceinline__ uint4 look(const void* from) {
  uint4 found;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w)
               : "l"(from)
               : "memory");
  return found;
}

// A flag that another GPU sees only behind all that this CTA wrote before its last barrier.
__device__ __forceinline__ void release(uint32_t* to, uint32_t flag) {
  __threadfence_system();
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(flag) : "memory");
}

__device__ __forceinline__ uint32_t acquired(const uint32_t* from) {
  uint32_t flag;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(flag) : "l"(from) : "memory");
  return flag;
}

}  // namespace sluice
