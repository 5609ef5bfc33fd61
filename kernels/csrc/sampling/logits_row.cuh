// One CTA reads one row of logits: what the kernels that do so share.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

#include "common/vector.cuh"

namespace sluice {

constexpr int kRowThreads = 1024;
constexpr int kRowWarps = kRowThreads / 32;

template <typename T>
struct LogitsRow {
  const T* logits;
  int vocab;

  // Calls visit(id, logit) for every token; a thread sees the tokens of a vector one after another.
  template <typename F>
  __device__ __forceinline__ void for_each(F visit) const {
    using V = Vector<T>;
    const bool vectors = reinterpret_cast<uintptr_t>(logits) % 16 == 0;
    const int num_vectors = vectors ? vocab / V::kSize : 0;
#pragma unroll 4
    for (int i = threadIdx.x; i < num_vectors; i += kRowThreads) {
      const V v = reinterpret_cast<const V*>(logits)[i];
#pragma unroll
      for (int e = 0; e < V::kSize; ++e) visit(i * V::kSize + e, to_float(v.x[e]));
    }
    for (int i = num_vectors * V::kSize + threadIdx.x; i < vocab; i += kRowThreads) {
      visit(i, to_float(logits[i]));
    }
  }
};

__device__ __forceinline__ double warp_sum(double x) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(~0u, x, d);
  return x;
}

// The same in all threads. sums: kRowWarps of shared memory.
__device__ inline double block_sum(double x, double* sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  x = warp_sum(x);
  __syncthreads();
  if (lane == 0) sums[warp] = x;
  __syncthreads();
  return warp_sum(sums[lane]);
}

}  // namespace sluice
