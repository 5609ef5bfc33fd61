// Counts in global memory by which the CTAs of one launch wait for each other. All of them must be
// resident at a time, which a cooperative launch sees to.
#pragma once

#include "spin_limit.cuh"

namespace sluice {

// Counts one up, after all that the CTA has written before its last barrier.
__device__ __forceinline__ void publish(int* count) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(count) : "memory");
}

// Returns when the count has come to `target`; what was written before it did can be seen.
__device__ __forceinline__ void await_count(const int* count, int target) {
  SpinLimit limit;
  int value;
  do {
    limit.check();
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(count) : "memory");
  } while (value < target);
}

}  // namespace sluice
