// Division of what is not negative by a number that is known before the launch, without a division:
// exact while the product of both is below 2^31.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

namespace sluice {

struct Divisor {
  int value;
  uint32_t inverse;  // 2^31 / value, rounded up

  static Divisor of(int value) {
    return {value, ((1u << 31) + static_cast<uint32_t>(value) - 1) / static_cast<uint32_t>(value)};
  }
};

__device__ __forceinline__ int quotient(int n, const Divisor& by) {
  const uint64_t doubled = static_cast<uint32_t>(n) * 2;
  return static_cast<int>(doubled * by.inverse >> 32);
}

__device__ __forceinline__ int remainder(int n, const Divisor& by) {
  return n - quotient(n, by) * by.value;
}

}  // namespace sluice
