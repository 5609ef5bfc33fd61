// The keys or values of 16 tokens in shared memory, as the decode kernel multiplies with them: of a
// cache of 16-bit floats in their natural order, of one in FP8 in that of fp8_layout.cuh.
//
// A format hands the operands of each step to a function, which is to multiply with them:
//
//   keys     multiply(step, b): b[0..1] for the first 8 columns of the scores, b[2..3] for the others
//   values   multiply(pair, b): likewise for output tiles 2 * pair and 2 * pair + 1
#pragma once

#include <type_traits>

#include "fp8_layout.cuh"
#include "mma.cuh"

namespace sluice {

template <typename T, int D>
struct PlainTile {
  using Stored = T;
  using Math = T;
  static constexpr bool kFp8 = false;
  static constexpr int kBytes = 16 * D * 2;

  static __device__ __forceinline__ int place(int row, int piece) {
    return swizzle<D>(row, piece) * 16;
  }

  static __device__ __forceinline__ int query_dim(int step, int high, int lane) {
    return step * 16 + high * 8 + lane % 4 * 2;
  }
  static __device__ __forceinline__ uint32_t query(uint32_t pair) { return pair; }

  static __device__ __forceinline__ int token(int i, int lane) {
    return i / 2 * 8 + lane % 4 * 2 + i % 2;
  }

  template <typename Multiply>
  static __device__ __forceinline__ void keys(uint32_t tile, int lane, Multiply&& multiply) {
    const int row = (lane & 7) + ((lane >> 4) << 3);
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
      uint32_t b[4];
      ldmatrix_x4(b, tile + place(row, step * 2 + ((lane >> 3) & 1)));
      multiply(step, b);
    }
  }

  template <typename Multiply>
  static __device__ __forceinline__ void values(uint32_t tile, int lane, Multiply&& multiply) {
    const int row = (lane & 7) + (((lane >> 3) & 1) << 3);
#pragma unroll
    for (int pair = 0; pair < D / 16; ++pair) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, tile + place(row, pair * 2 + (lane >> 4)));
      multiply(pair, b);
    }
  }

  // Adds one quarter of the columns of row r of the output, times f, to `out`; fresh: writes it.
  static __device__ __forceinline__ void add(float* out, int r, const float (&o)[D / 8][4],
                                             int half, float f, int quarter, bool fresh, int lane) {
    float2* dst = reinterpret_cast<float2*>(&out[r * D + (lane % 4) * 2]);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {  // registers cannot be indexed by `quarter`
      if (n / (D / 32) != quarter) continue;
      float2 x = fresh ? make_float2(0.f, 0.f) : dst[n * 4];
      x.x += o[n][half * 2] * f;
      x.y += o[n][half * 2 + 1] * f;
      dst[n * 4] = x;
    }
  }
};

// The lower two bytes, e4m3, as float16: exact.
__device__ __forceinline__ uint32_t widen_e4m3(uint32_t bytes) {
#if __CUDA_ARCH__ >= 890
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(bytes)));
  return halves;
#else
  const uint32_t spread = __byte_perm(bytes, 0, 0x1404);  // each to the upper half of 16 bits
  const uint32_t small = (spread & 0x80008000u) | ((spread & 0x7F007F00u) >> 1);
  const __half2 x = __hmul2(reinterpret_cast<const __half2&>(small), __float2half2_rn(256.f));
  return reinterpret_cast<const uint32_t&>(x);
#endif
}

template <int N>
__device__ __forceinline__ void load_shared(uint32_t (&words)[N], uint32_t at) {
  static_assert(N == 1 || N == 2 || N == 4);
  if constexpr (N == 1) {
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(words[0]) : "r"(at) : "memory");
  } else if constexpr (N == 2) {
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                 : "=r"(words[0]), "=r"(words[1])
                 : "r"(at)
                 : "memory");
  } else {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(at)
                 : "memory");
  }
}

// Computes in float16, which holds every e4m3: more exact than bfloat16, and as fast.
template <typename T, int D>
struct Fp8Tile {
  using Stored = uint8_t;
  using Math = __half;
  using Layout = Fp8Layout<D>;
  static constexpr bool kFp8 = true;
  static constexpr int kBytes = Layout::kTileBytes;

  static __device__ __forceinline__ int place(int row, int piece) {
    return Layout::place(row, piece * 16);
  }

  static __device__ __forceinline__ int query_dim(int step, int high, int lane) {
    return Layout::query_dim(step, high, lane);
  }
  static __device__ __forceinline__ uint32_t query(uint32_t pair) {
    if constexpr (std::is_same_v<T, __half>) return pair;
    const float2 x = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pair));
    constexpr float kLargest = 65504.f;  // never reached by a sane model, but infinity is no number
    return Half<__half>::pack(fminf(fmaxf(x.x, -kLargest), kLargest),
                              fminf(fmaxf(x.y, -kLargest), kLargest));
  }

  static __device__ __forceinline__ int token(int i, int lane) { return Layout::token(i, lane); }

  template <typename Multiply>
  static __device__ __forceinline__ void keys(uint32_t tile, int lane, Multiply&& multiply) {
    constexpr int kWords = Layout::kKeyBytes / 4;
#pragma unroll
    for (int chunk = 0; chunk < Layout::kKeyChunks; ++chunk) {
      uint32_t x[2][kWords];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = Layout::key_row(half, lane);
        load_shared(x[half], tile + Layout::place(row, Layout::key_at(chunk, lane)));
      }
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        const uint32_t b[4] = {widen_e4m3(x[0][i]), widen_e4m3(x[0][i] >> 16),
                               widen_e4m3(x[1][i]), widen_e4m3(x[1][i] >> 16)};
        multiply(chunk * kWords + i, b);
      }
    }
  }

  template <typename Multiply>
  static __device__ __forceinline__ void values(uint32_t tile, int lane, Multiply&& multiply) {
    constexpr int kWords = Layout::kValueBytes / 4;
#pragma unroll
    for (int chunk = 0; chunk < Layout::kValueChunks; ++chunk) {
      uint32_t x[4][kWords];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = Layout::value_row(i, lane);
        load_shared(x[i], tile + Layout::place(row, Layout::value_at(chunk, lane)));
      }
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
#pragma unroll
        for (int high = 0; high < 2; ++high) {
          // Of two tokens each, the bytes of two neighbouring dims, dim by dim.
          const int order = high ? 0x7362 : 0x5140;
          const uint32_t first = __byte_perm(x[0][i], x[1][i], order);
          const uint32_t second = __byte_perm(x[2][i], x[3][i], order);
          const uint32_t b[4] = {widen_e4m3(first), widen_e4m3(second), widen_e4m3(first >> 16),
                                 widen_e4m3(second >> 16)};
          multiply((chunk * kWords + i) * 2 + high, b);
        }
      }
    }
  }

  static __device__ __forceinline__ void add(float* out, int r, const float (&o)[D / 8][4],
                                             int half, float f, int quarter, bool fresh, int lane) {
    constexpr int kQuarter = D / 32;
    constexpr int kRun = kQuarter % 4 == 0 ? 4 : kQuarter % 2 == 0 ? 2 : 1;
    struct alignas(4 * kRun) Run {
      float x[kRun];
    };
#pragma unroll
    for (int n = 0; n < D / 8; n += kRun) {
      if (n / kQuarter != quarter) continue;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        Run* to = reinterpret_cast<Run*>(&out[r * D + Layout::column(n, e, lane)]);
        Run run = {};
        if (!fresh) run = *to;
#pragma unroll
        for (int i = 0; i < kRun; ++i) run.x[i] += o[n + i][half * 2 + e] * f;
        *to = run;
      }
    }
  }
};

}  // namespace sluice
