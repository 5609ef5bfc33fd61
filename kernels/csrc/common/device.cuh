// What a launch asks of the GPU it is for.
#pragma once

#include <cuda_runtime.h>

namespace sluice {

inline int num_sms() {
  static const int count = [] {
    int device = 0, found = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, device);
    return found;
  }();
  return count;
}

}  // namespace sluice
