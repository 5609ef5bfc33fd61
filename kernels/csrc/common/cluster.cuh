// Results handed from CTA to CTA of a cluster: written into the other's shared memory, where they
// count towards a barrier, so that nobody has to meet or to fence. Of sm_90, else empty.
#pragma once

#include "common/hopper.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define SLUICE_CLUSTERS 1
#else
#define SLUICE_CLUSTERS 0
#endif

namespace sluice {

inline constexpr bool kHasClusters = SLUICE_CLUSTERS;

// By one thread, before the cluster meets: `bytes` will be sent to this CTA.
__device__ __forceinline__ void expect_results(uint64_t* barrier, int bytes) {
#if SLUICE_CLUSTERS
  mbarrier_init(address(barrier), 1);
  mbarrier_init_fence();
  mbarrier_expect(address(barrier), bytes);
#endif
}

// By all threads; after both, the barriers of all CTAs are ready.
__device__ __forceinline__ void arrive_at_cluster() {
#if SLUICE_CLUSTERS
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_cluster() {
#if SLUICE_CLUSTERS
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

// To the same place in the shared memory of another CTA, or of this one.
__device__ __forceinline__ void send(int rank, float4* to, float4 v, uint64_t* barrier) {
#if SLUICE_CLUSTERS
  asm volatile(
      "{.reg .b32 there, bar; mapa.shared::cluster.u32 there, %0, %2; "
      "mapa.shared::cluster.u32 bar, %1, %2; "
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], "
      "{%3, %4, %5, %6}, [bar];}" ::"r"(address(to)),
      "r"(address(barrier)), "r"(rank), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
      : "memory");
#endif
}
__device__ __forceinline__ void send(int rank, float2* to, float2 v, uint64_t* barrier) {
#if SLUICE_CLUSTERS
  asm volatile(
      "{.reg .b32 there, bar; mapa.shared::cluster.u32 there, %0, %2; "
      "mapa.shared::cluster.u32 bar, %1, %2; "
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [there], {%3, %4}, "
      "[bar];}" ::"r"(address(to)),
      "r"(address(barrier)), "r"(rank), "f"(v.x), "f"(v.y)
      : "memory");
#endif
}

__device__ __forceinline__ void wait_for_results(uint64_t* barrier) {
#if SLUICE_CLUSTERS
  mbarrier_wait(address(barrier), 0);
#endif
}

}  // namespace sluice

#undef SLUICE_CLUSTERS
