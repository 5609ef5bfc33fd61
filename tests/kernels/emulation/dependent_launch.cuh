// In place of the kernels' own: nothing runs beside anything.
#pragma once

#include "warp.h"

namespace sluice {
inline void wait_for_inputs() {}
inline void allow_next() {}

template <typename Kernel, typename Arguments>
cudaError_t launch_dependent(Kernel kernel, dim3 ctas, int threads, size_t, cudaStream_t,
                             const Arguments& arguments) {
  if (threads != emulation::kThreads) return cudaErrorInvalidConfiguration;
  static Kernel launched;
  static Arguments given;
  launched = kernel, given = arguments;
  for (unsigned y = 0; y < ctas.y; ++y) {
    for (unsigned x = 0; x < ctas.x; ++x) {
      const emulation::Place place = {static_cast<int>(x), static_cast<int>(y), 0};
      emulation::run_cta(place, [] { launched(given); });
    }
  }
  return cudaSuccess;
}
}  // namespace sluice
