// The keys or values of 16 tokens in shared memory, as the decode kernel multiplies with them: of a
// cache of 16-bit floats in their natural order, of one in FP8 in that of fp8_layout.cuh.
//
// A format hands the A operands of each step to a function, which is to multiply with them:
//
//   keys     multiply(step, a): 16 tokens by 16 dims
//   values   multiply(tile, a): 16 dims by 16 tokens
#pragma once

#include <type_traits>

#include "attention/fp8_layout.cuh"
#include "common/mma.cuh"

namespace sluice {

// Where 16-byte piece `c` of row `r` lives in a tile of rows of D 16-bit elements: the pieces of a
// row are permuted so that the eight rows an ldmatrix touches fall into eight different bank
// groups.
template <int D>
__device__ __forceinline__ int swizzle(int r, int c) {
  constexpr int kPieces = D / 8;
  if constexpr (kPieces % 8 == 0) {
    return r * kPieces + (c ^ (r & 7));
  } else {  // D = 96: the row stride is 1.5 x 128 bytes, so odd rows are shifted by half already
    static_assert(kPieces % 4 == 0);
    return r * kPieces + (c ^ ((r >> 1) & 3));
  }
}

template <typename T, int D>
struct PlainTile {
  using Stored = T;
  using Math = T;
  static constexpr bool kFp8 = false;
  static constexpr int kBytes = 16 * D * 2;

  static __device__ __forceinline__ int place(int row, int piece) {
    return swizzle<D>(row, piece) * 16;
  }
  // From the place of a row in a tile, that of the same piece `rows` rows further, which is a
  // multiple of the rows that one load of a warp takes.
  static __device__ __forceinline__ uint32_t further(uint32_t at, int rows) {
    return (at ^ (place(rows, 0) % (D * 2))) + rows * D * 2;
  }

  static __device__ __forceinline__ int query_dim(int step, int high, int lane) {
    return step * 16 + high * 8 + lane % 4 * 2;
  }
  static __device__ __forceinline__ uint32_t query(uint32_t pair) { return pair; }

  // The token of row lane / 4 + 8 * half of the scores.
  static __device__ __forceinline__ int token(int half, int lane) { return half * 8 + lane / 4; }

  template <typename Multiply>
  static __device__ __forceinline__ void keys(uint32_t tile, int lane, Multiply&& multiply) {
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
      uint32_t a[4];
      ldmatrix_x4(a, address(tile, lane & 15, lane >> 4, step));
      multiply(step, a);
    }
  }

  template <typename Multiply>
  static __device__ __forceinline__ void values(uint32_t tile, int lane, Multiply&& multiply) {
    const int row = (lane & 7) + ((lane >> 4) << 3);
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
      uint32_t a[4];
      ldmatrix_x4_trans(a, address(tile, row, (lane >> 3) & 1, step));
      multiply(step, a);
    }
  }

  // Writes row lane % 4 * 2 + e of the output, to which `row` points.
  static __device__ __forceinline__ void put(float* row, const float (&o)[D / 16][4], int e,
                                             int lane) {
#pragma unroll
    for (int tile = 0; tile < D / 16; ++tile) {
      row[tile * 16 + lane / 4] = o[tile][e];
      row[tile * 16 + lane / 4 + 8] = o[tile][e + 2];
    }
  }

 private:
  // Of piece 2 * step + high of a row. Tiles are aligned to their rows, so a step is one XOR.
  static __device__ __forceinline__ uint32_t address(uint32_t tile, int row, int high, int step) {
    if constexpr (D % 64 == 0) {
      return (tile + place(row, high)) ^ (step * 32);
    } else {
      return tile + place(row, step * 2 + high);
    }
  }
};

// Four e4m3 as float16, the lower two and the upper two: exact.
__device__ __forceinline__ void widen_e4m3(uint32_t bytes, uint32_t& lower, uint32_t& upper) {
#if __CUDA_ARCH__ >= 890
  asm("{\n"
      ".reg .b16 lo, hi;\n"
      "mov.b32 {lo, hi}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, lo;\n"
      "cvt.rn.f16x2.e4m3x2 %1, hi;\n"
      "}\n"
      : "=r"(lower), "=r"(upper)
      : "r"(bytes));
#else
  const auto widen = [](uint32_t spread) {  // each in the upper half of 16 bits
    const uint32_t small = (spread & 0x80008000u) | ((spread & 0x7F007F00u) >> 1);
    const __half2 x = __hmul2(reinterpret_cast<const __half2&>(small), __float2half2_rn(256.f));
    return reinterpret_cast<const uint32_t&>(x);
  };
  lower = widen(__byte_perm(bytes, 0, 0x1404));
  upper = widen(__byte_perm(bytes, 0, 0x3424));
#endif
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
  static __device__ __forceinline__ uint32_t further(uint32_t at, int rows) {
    return (at ^ (Layout::place(rows, 0) % Layout::kRowBytes)) + rows * Layout::kRowBytes;
  }

  static __device__ __forceinline__ int query_dim(int step, int high, int lane) {
    return Layout::query_dim(step, high, lane);
  }
  static __device__ __forceinline__ uint32_t query(uint32_t pair) {
    if constexpr (std::is_same_v<T, __half>) return pair;
    // What float16 cannot hold is never reached by a sane model, but infinity is no number.
    const __nv_bfloat162 most = __float2bfloat162_rn(65280.f);
    const auto x = __hmax2(__hmin2(reinterpret_cast<const __nv_bfloat162&>(pair), most), -most);
    const float2 wide = __bfloat1622float2(x);
    return Half<__half>::pack(wide.x, wide.y);
  }

  static __device__ __forceinline__ int token(int half, int lane) {
    return Layout::key_row(half, lane);
  }

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
        uint32_t a[4];
        widen_e4m3(x[0][i], a[0], a[2]);
        widen_e4m3(x[1][i], a[1], a[3]);
        multiply(chunk * kWords + i, a);
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
          uint32_t a[4];
          widen_e4m3(__byte_perm(x[0][i], x[1][i], order), a[0], a[1]);
          widen_e4m3(__byte_perm(x[2][i], x[3][i], order), a[2], a[3]);
          multiply((chunk * kWords + i) * 2 + high, a);
        }
      }
    }
  }

  static __device__ __forceinline__ void put(float* row, const float (&o)[D / 16][4], int e,
                                             int lane) {
#pragma unroll
    for (int tile = 0; tile < D / 16; tile += 2) {
      *reinterpret_cast<float4*>(&row[Layout::column(tile, lane)]) =
          make_float4(o[tile][e], o[tile][e + 2], o[tile + 1][e], o[tile + 1][e + 2]);
    }
  }
};

}  // namespace sluice
