// Counts by which the warps of one launch, or of one CTA, wait for each other. All CTAs must be
// resident at a time, which a cooperative launch sees to.
#pragma once

#include <cstdint>

#include "common/spin_limit.cuh"

namespace sluice {

// Counts one up in global memory, after all that the warp has written before it last met.
__device__ __forceinline__ void publish(int* count) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(count) : "memory");
}

// Returns when the count has come to `target`; what was written before it did can be seen. For
// those who have time.
__device__ __forceinline__ void await_count(const int* count, int target) {
  SpinLimit limit;
  while (true) {
    limit.check();
    int value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(count) : "memory");
    if (value >= target) return;
    asm volatile("nanosleep.u32 500;");
  }
}

// The same within a CTA, of a count in shared memory that one thread sets.
__device__ __forceinline__ void set_shared(uint32_t at, int value) {
  asm volatile("st.release.cta.shared::cta.s32 [%0], %1;" ::"r"(at), "r"(value) : "memory");
}

__device__ __forceinline__ void await_shared(uint32_t at, int target) {
  SpinLimit limit;
  int value;
  do {
    limit.check();
    asm volatile("ld.acquire.cta.shared::cta.s32 %0, [%1];" : "=r"(value) : "r"(at) : "memory");
  } while (value < target);
}

}  // namespace sluice
