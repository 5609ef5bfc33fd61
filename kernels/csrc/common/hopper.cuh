// Hopper's asynchronous machinery (sm_90a): barriers in shared memory, the tensor copy engine,
// registers moved between warpgroups.
#pragma once

#include <cuda.h>
#include <cstdint>

#include "common/spin_limit.cuh"

// Other architectures get empty kernels, which are never launched.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define SLUICE_HOPPER
#endif

namespace sluice {

__device__ __forceinline__ void mbarrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers known to the copy engine.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and lets the phase end only after `bytes` more have been copied.
__device__ __forceinline__ void mbarrier_expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Returns when the phase of this parity has ended. Of a fresh barrier, phase 1 counts as ended.
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, int parity) {
  SpinLimit limit;
  uint32_t done;
  do {
    limit.check();
    asm volatile(
        "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
        "selp.b32 %0, 1, 0, p;}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (!done);
}

// Starts the copy of one box, from (x, y) or (x, y, z, v, w) on; its bytes count for the barrier.
__device__ __forceinline__ void copy_box(uint32_t smem, const CUtensorMap& map, uint32_t barrier,
                                         int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3}], [%4];" ::"r"(smem),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}

// policy: how the L2 keeps it.
__device__ __forceinline__ void copy_box(uint32_t smem, const CUtensorMap& map, uint32_t barrier,
                                         int x, int y, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(smem),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(x), "r"(y), "r"(barrier), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void copy_box(uint32_t smem, const CUtensorMap& map, uint32_t barrier,
                                         int x, int y, int z, int v, int w) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(smem),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(x), "r"(y), "r"(z), "r"(v), "r"(w), "r"(barrier)
      : "memory");
}

// Starts the copy of bytes in a row, a multiple of 16 from a multiple of 16 to one; they count for
// the barrier. policy: how the L2 keeps them.
__device__ __forceinline__ void copy_row(uint32_t smem, const void* from, int bytes,
                                         uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(smem),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// Of what is read once: it makes room before all else.
__device__ __forceinline__ uint64_t evict_first_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// As without a policy. `createpolicy` makes none that is like it: its evict_normal is another.
constexpr uint64_t kUsualPolicy = 0x1000000000000000;

__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(&map)) : "memory");
}

// Lets the tensor cores and the copy engine see this thread's ordinary writes to shared memory.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// A barrier of some of the CTA's threads; 0 is that of __syncthreads.
__device__ __forceinline__ void sync_named(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

template <int N>
__device__ __forceinline__ void give_up_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

// A place in a ring of stages.
template <int kSize>
struct Place {
  int stage = 0, parity = 0;
  __device__ void advance() {
    stage = stage + 1 == kSize ? 0 : stage + 1;
    parity ^= stage == 0;
  }
};

__device__ __forceinline__ uint32_t address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// All threads of all CTAs of the cluster; what they wrote to shared memory can then be seen.
__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// Likewise, but says nothing of what they wrote, except for barriers made known by
// mbarrier_init_fence; takes less time.
__device__ __forceinline__ void meet_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// Starts the copy of one box to the same place in several CTAs of the cluster, given as bits; its
// bytes count towards the barrier of each.
__device__ __forceinline__ void copy_box_to(uint16_t ranks, uint32_t smem, const CUtensorMap& map,
                                            uint32_t barrier, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(smem),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(x), "r"(y), "r"(barrier),
      "h"(ranks)
      : "memory");
}

// Arrives at the barrier of a CTA of the cluster. Orders this thread's accesses within its CTA
// only: an order for the whole cluster would cost a fence of the GPU.
__device__ __forceinline__ void mbarrier_arrive_at(int rank, uint32_t barrier) {
  asm volatile(
      "{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
      "mbarrier.arrive.shared::cluster.b64 _, [there];}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

// From the shared memory of a CTA of the cluster.
__device__ __forceinline__ float4 load_from(int rank, uint32_t smem) {
  float4 v;
  asm volatile(
      "{.reg .b32 there; mapa.shared::cluster.u32 there, %4, %5; "
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];}"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "r"(smem), "r"(rank)
      : "memory");
  return v;
}

// A warp stores four matrices of 8 x 8 elements of 16 bits, laid out as accumulators are; lane l
// has the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices(uint32_t smem, uint32_t a, uint32_t b, uint32_t c,
                                               uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

}  // namespace sluice
