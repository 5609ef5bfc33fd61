// What a file of kernels finds before its first line when it is compiled for a CPU.
#pragma once

#include "warp.h"

#undef __shared__
#undef __global__
#undef __launch_bounds__
#undef __grid_constant__
#define __shared__ static  // one CTA after the other
#define __global__
#define __launch_bounds__(...)
#define __grid_constant__

// Questions to the device: this many clusters run at a time.
#define cudaFuncSetAttribute(...) cudaSuccess
#define cudaOccupancyMaxActiveClusters(count, ...) (*(count) = 3, cudaSuccess)

template <typename T>
T __ldg(const T* at) {
  return *at;
}

inline float __uint_as_float(uint32_t x) { return emulation::bits<float>(x); }
inline uint32_t __float_as_uint(float x) { return emulation::bits<uint32_t>(x); }
inline float __expf(float x) { return std::exp(x); }
inline float rsqrtf(float x) { return 1.f / std::sqrt(x); }

// Memory of the host is memory of the device.
#define cudaHostGetDevicePointer(to, from, flags) (*(to) = (from), cudaSuccess)
