// Warpgroup MMAs of Hopper (wgmma, sm_90a): 64 rows, fp32 accumulators in registers.
//
// The lists below only spell out registers: PTX has no arrays. Accumulator i of a thread belongs to
// row warp * 16 + lane / 4 + i % 4 / 2 * 8 and column i / 4 * 8 + lane % 4 * 2 + i % 2.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cstdint>
#include <type_traits>

#define SLUICE_ACC8(d, i)                                                                    \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define SLUICE_ACC16(d, i) SLUICE_ACC8(d, i), SLUICE_ACC8(d, i + 8)
#define SLUICE_ACC32(d, i) \
  SLUICE_ACC8(d, i), SLUICE_ACC8(d, i + 8), SLUICE_ACC8(d, i + 16), SLUICE_ACC8(d, i + 24)
#define SLUICE_ACC64(d, i) SLUICE_ACC32(d, i), SLUICE_ACC32(d, i + 32)
#define SLUICE_ACC96(d, i) SLUICE_ACC64(d, i), SLUICE_ACC32(d, i + 64)
#define SLUICE_ACC112(d, i) SLUICE_ACC96(d, i), SLUICE_ACC8(d, i + 96), SLUICE_ACC8(d, i + 104)
#define SLUICE_ACC128(d, i) SLUICE_ACC64(d, i), SLUICE_ACC64(d, i + 64)

#define SLUICE_REGS8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define SLUICE_REGS16 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define SLUICE_REGS32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SLUICE_REGS64 \
  SLUICE_REGS32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SLUICE_REGS96 \
  SLUICE_REGS64 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define SLUICE_REGS112 \
  SLUICE_REGS96 \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, " \
  "%110, %111"
#define SLUICE_REGS128 \
  SLUICE_REGS112 \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, " \
  "%125, %126, %127"

// d += a * b with both operands in shared memory, K-major; fresh: d = a * b.
#define SLUICE_WGMMA_SS(n, count, type, a_at, b_at, p_at)                                \
  asm volatile(                                                                          \
      "{.reg .pred p; setp.ne.b32 p, " p_at ", 0; wgmma.mma_async.sync.aligned.m64n" #n  \
      "k16.f32." type "." type " {" SLUICE_REGS##count "}, " a_at ", " b_at              \
      ", p, 1, 1, 0, 0;}"                                                                \
      : SLUICE_ACC##count(d, 0)                                                          \
      : "l"(a), "l"(b), "r"(static_cast<int>(!fresh)))

// d += a * b with a in registers and b in shared memory, MN-major (major 1) or K-major (0).
#define SLUICE_WGMMA_RS(n, count, type, major, a0, a1, a2, a3, b_at)                     \
  asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n" #n \
               "k16.f32." type "." type " {" SLUICE_REGS##count "}, {" a0 "," a1 "," a2  \
               "," a3 "}, " b_at ", p, 1, 1, " #major ";}"                               \
               : SLUICE_ACC##count(d, 0)                                                 \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

// d += a * b in e4m3, both K-major, 32 elements of k at once; fresh: d = a * b.
#define SLUICE_WGMMA_FP8(n, count, a_at, b_at, p_at)                                         \
  asm volatile("{.reg .pred p; setp.ne.b32 p, " p_at ", 0; wgmma.mma_async.sync.aligned.m64n" #n \
               "k32.f32.e4m3.e4m3 {" SLUICE_REGS##count "}, " a_at ", " b_at ", p, 1, 1;}"   \
               : SLUICE_ACC##count(d, 0)                                                     \
               : "l"(a), "l"(b), "r"(static_cast<int>(!fresh)))

#define SLUICE_WGMMA(n, count, i0, i1, i2, i3, i4)                                              \
  template <typename T>                                                                         \
  __device__ __forceinline__ void wgmma(float (&d)[count], uint64_t a, uint64_t b, bool fresh) { \
    if constexpr (std::is_same_v<T, __half>) {                                                  \
      SLUICE_WGMMA_SS(n, count, "f16", i0, i1, i2);                                             \
    } else {                                                                                    \
      SLUICE_WGMMA_SS(n, count, "bf16", i0, i1, i2);                                            \
    }                                                                                           \
  }                                                                                             \
  template <typename T>                                                                         \
  __device__ __forceinline__ void wgmma(float (&d)[count], const uint32_t (&a)[4], uint64_t b) { \
    if constexpr (std::is_same_v<T, __half>) {                                                  \
      SLUICE_WGMMA_RS(n, count, "f16", 1, i0, i1, i2, i3, i4);                                  \
    } else {                                                                                    \
      SLUICE_WGMMA_RS(n, count, "bf16", 1, i0, i1, i2, i3, i4);                                 \
    }                                                                                           \
  }                                                                                             \
  template <typename T>                                                                         \
  __device__ __forceinline__ void wgmma_rows(float (&d)[count], const uint32_t (&a)[4],         \
                                             uint64_t b) {                                      \
    if constexpr (std::is_same_v<T, __half>) {                                                  \
      SLUICE_WGMMA_RS(n, count, "f16", 0, i0, i1, i2, i3, i4);                                  \
    } else {                                                                                    \
      SLUICE_WGMMA_RS(n, count, "bf16", 0, i0, i1, i2, i3, i4);                                 \
    }                                                                                           \
  }                                                                                             \
  __device__ __forceinline__ void wgmma_fp8(float (&d)[count], uint64_t a, uint64_t b,          \
                                            bool fresh) {                                       \
    SLUICE_WGMMA_FP8(n, count, i0, i1, i2);                                                     \
  }

namespace sluice {

SLUICE_WGMMA(16, 8, "%8", "%9", "%10", "%11", "%12")
SLUICE_WGMMA(32, 16, "%16", "%17", "%18", "%19", "%20")
SLUICE_WGMMA(64, 32, "%32", "%33", "%34", "%35", "%36")
SLUICE_WGMMA(128, 64, "%64", "%65", "%66", "%67", "%68")
SLUICE_WGMMA(192, 96, "%96", "%97", "%98", "%99", "%100")
SLUICE_WGMMA(224, 112, "%112", "%113", "%114", "%115", "%116")
SLUICE_WGMMA(256, 128, "%128", "%129", "%130", "%131", "%132")

// Before the first product after ordinary writes to the registers it uses.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most N of the newest committed groups are under way.
template <int N>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// Keeps the compiler from moving uses of accumulators across this point: it does not know that
// the products run on after their instruction.
template <int N>
__device__ __forceinline__ void pin(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Has the arithmetic that leads to x, which is not negative, done before what follows: the
// assembler likes to begin with the waits, which leaves nothing to do beside the products. Nobody
// ever sleeps.
__device__ __forceinline__ void hold(float x) {
  asm volatile("{.reg .pred p; setp.lt.f32 p, %0, 0f00000000; @p nanosleep.u32 0;}" ::"f"(x)
               : "memory");
}

// Describes tiles in shared memory whose rows are 128 bytes, swizzled as the copy engine does it
// (CU_TENSOR_MAP_SWIZZLE_128B). K-major: 8 rows of a tile follow after `kGroup` bytes. MN-major:
// 8 steps along k follow after `kGroup` bytes, 64 elements along n after `panel` bytes.
//
// Of tiles cut out of one another the descriptors differ by one addition. To work each out by
// itself takes ten instructions, longer than a product.
template <int kGroup = 1024>
struct TileDescriptor {
  uint32_t low;

  __device__ __forceinline__ TileDescriptor(uint32_t smem, uint32_t panel)
      : low((smem & 0x3FFFF) >> 4 | (panel >> 4) << 16) {}

  // Of the tile that begins `bytes` further.
  __device__ __forceinline__ uint64_t at(uint32_t bytes) const {
    constexpr uint32_t kSwizzle128 = 1u << 30, kHigh = kSwizzle128 | kGroup >> 4;
    return static_cast<uint64_t>(kHigh) << 32 | (low + (bytes >> 4));
  }
};

__device__ __forceinline__ uint64_t tile_descriptor(uint32_t smem, uint32_t panel) {
  return TileDescriptor<>(smem, panel).at(0);
}

}  // namespace sluice

#undef SLUICE_WGMMA
#undef SLUICE_WGMMA_FP8
#undef SLUICE_WGMMA_RS
#undef SLUICE_WGMMA_SS
