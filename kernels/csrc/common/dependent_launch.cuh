// Programmatic dependent launch (sm_90): a kernel may start while the one before it still runs, and
// do what does not depend on it; so the gaps between the small kernels of a decode step close.
//
// A kernel that allows the next one does so after its own wait, so that no more than one runs
// ahead: with longer chains the waiting CTAs take the place of working ones (measured: slower than
// none).
//
// Every kernel launched with launch_dependent must call wait_for_inputs before it touches anything
// another kernel wrote or reads. Waits chain: the kernel before ends only after its own wait.
#pragma once

#include <cuda_runtime.h>
#include <utility>

namespace sluice {

// Lets the next kernel start as soon as all CTAs of this one have come here.
__device__ __forceinline__ void allow_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Returns when the kernels before have ended and their writes can be seen.
__device__ __forceinline__ void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

inline bool device_has_dependent_launch() {
  static const bool has = [] {
    int device = 0, major = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    return major >= 9;
  }();
  return has;
}

// cluster: how many neighbouring CTAs are on SMs close to each other at the same time.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_dependent_clusters(void (*kernel)(Parameters...), dim3 grid, dim3 block,
                                      size_t smem, cudaStream_t stream, dim3 cluster,
                                      Arguments&&... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {cluster.x, cluster.y, cluster.z};
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = smem;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = !device_has_dependent_launch() ? 0
                    : cluster.x * cluster.y * cluster.z > 1  ? 2
                                                             : 1;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

template <typename... Parameters, typename... Arguments>
cudaError_t launch_dependent(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t smem,
                             cudaStream_t stream, Arguments&&... arguments) {
  return launch_dependent_clusters(kernel, grid, block, smem, stream, 1,
                                   std::forward<Arguments>(arguments)...);
}

}  // namespace sluice
