// Rotary embedding (arXiv:2104.09864, halves convention) within the decode kernel.
#pragma once

#include "common/mma.cuh"

namespace sluice {

// Turns two neighbouring dims, a, and those half a head further, b; rounds to T.
template <typename T>
__device__ __forceinline__ void rotate(uint32_t& a, uint32_t& b, float2 cos, float2 sin) {
  const float2 x = Half<T>::unpack(a), y = Half<T>::unpack(b);
  a = Half<T>::pack(x.x * cos.x - y.x * sin.x, x.y * cos.y - y.y * sin.y);
  b = Half<T>::pack(y.x * cos.x + x.x * sin.x, y.y * cos.y + x.y * sin.y);
}

// The cosines and sines that a thread turns a row of queries with, which it holds as the B operand
// of its products.
template <typename T, typename Tile, int D>
struct RowTurn {
  static constexpr int kSteps = D / 16;
  float2 x[kSteps / 2][2][2];

  // cos: [D], of the row's position.
  __device__ __forceinline__ void load(const float* cos, int lane) {
#pragma unroll
    for (int s = 0; s < kSteps / 2; ++s) {
#pragma unroll
      for (int high = 0; high < 2; ++high) {
#pragma unroll
        for (int sine = 0; sine < 2; ++sine) {
          const float* pair = cos + lane % 4 * 2 + Tile::query_dim(s, high, 0) + sine * (D / 2);
          x[s][high][sine] = *reinterpret_cast<const float2*>(pair);
        }
      }
    }
  }

  __device__ __forceinline__ void apply(uint32_t (&row)[kSteps][2]) const {
#pragma unroll
    for (int s = 0; s < kSteps / 2; ++s) {
#pragma unroll
      for (int high = 0; high < 2; ++high) {
        rotate<T>(row[s][high], row[s + kSteps / 2][high], x[s][high][0], x[s][high][1]);
      }
    }
  }
};

// 16 bytes of a new key and of its value, and those half a head further: where they are in the
// projection, and where they go in the cache and in a tile of the decode kernel.
template <typename T, typename Tile, int D>
struct NewPiece {
  const T *k, *v;  // in the projection
  T *k_cache, *v_cache;
  const float* cos;
  uint32_t low, high;  // in the tile of keys, that of values is Tile::kBytes further

  __device__ __forceinline__ void take_in() const {
    uint32_t x[2][4], y[2][4];
    float2 cosines[4], sines[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      load(x[half], k + half * (D / 2));
      load(y[half], v + half * (D / 2));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      cosines[i] = reinterpret_cast<const float2*>(cos)[i];
      sines[i] = reinterpret_cast<const float2*>(cos + D / 2)[i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) rotate<T>(x[0][i], x[1][i], cosines[i], sines[i]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t at = half ? high : low;
      store_shared(at, x[half]);
      store_shared(at + Tile::kBytes, y[half]);
      store(k_cache + half * (D / 2), x[half]);
      store(v_cache + half * (D / 2), y[half]);
    }
  }

 private:
  static __device__ __forceinline__ void load(uint32_t (&to)[4], const T* from) {
    const uint4 words = *reinterpret_cast<const uint4*>(from);
    to[0] = words.x, to[1] = words.y, to[2] = words.z, to[3] = words.w;
  }
  static __device__ __forceinline__ void store(T* to, const uint32_t (&words)[4]) {
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  }
};

}  // namespace sluice
