// Describing tensors to Hopper's copy engine.
#pragma once

#include <cudaTypedefs.h>

namespace sluice {

// The driver's function that makes descriptions; null where it has none.
inline PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    const cudaError_t error = cudaGetDriverEntryPointByVersion(
        "cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    const bool ok = error == cudaSuccess && result == cudaDriverEntryPointSuccess;
    return ok ? reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found) : nullptr;
  }();
  return encode;
}

}  // namespace sluice
