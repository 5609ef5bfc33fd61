// Heads of a token's projection, normed and rotated (arXiv:2104.09864, halves convention), as the
// tensor core's operand: thread t of four has 8 dims of every 32.
#pragma once

#include "attention/decode_rope.cuh"
#include "common/exchange.cuh"
#include "common/vector.cuh"

namespace sluice::persistent {

__device__ __forceinline__ void set_words(uint32_t (&to)[4], const uint4& x) {
  to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
}

template <int D>
using HeadWords = uint32_t[D / 32][4];

// Cosines and sines of a position, for the dims of thread t.
template <int D>
struct Turns {
  static constexpr int kHalves = D / 64;
  float2 cos[kHalves][4], sin[kHalves][4];

  // position: its row of D numbers.
  __device__ __forceinline__ void load(const float* position, int t) {
#pragma unroll
    for (int c = 0; c < kHalves; ++c) {
#pragma unroll
      for (int w = 0; w < 4; w += 2) {
        const auto* at = reinterpret_cast<const float4*>(position + c * 32 + t * 8 + w * 2);
        const float4 cosines = __ldg(at), sines = __ldg(at + D / 8);
        cos[c][w] = {cosines.x, cosines.y}, cos[c][w + 1] = {cosines.z, cosines.w};
        sin[c][w] = {sines.x, sines.y}, sin[c][w + 1] = {sines.z, sines.w};
      }
    }
  }
};

template <typename T, int D>
__device__ __forceinline__ void look_at_head(HeadWords<D>& head, const T* from, int t) {
#pragma unroll
  for (int c = 0; c < D / 32; ++c) look(head[c], from + c * 32 + t * 8);
}

// RMSNorm over the four threads that have the head.
template <typename T, int D>
__device__ __forceinline__ void norm_head(HeadWords<D>& head, const T* weight, float eps, int t) {
  float squares = 0.f;
#pragma unroll
  for (int c = 0; c < D / 32; ++c) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float2 two = Half<T>::unpack(head[c][w]);
      squares += two.x * two.x + two.y * two.y;
    }
  }
  squares += __shfl_xor_sync(~0u, squares, 1);
  squares += __shfl_xor_sync(~0u, squares, 2);
  const float scale = rsqrtf(squares / D + eps);
#pragma unroll
  for (int c = 0; c < D / 32; ++c) {
    uint32_t weights[4];
    set_words(weights, __ldg(reinterpret_cast<const uint4*>(weight + c * 32 + t * 8)));
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float2 two = Half<T>::unpack(head[c][w]), by = Half<T>::unpack(weights[w]);
      head[c][w] =
          Half<T>::pack(rounded<T>(two.x * scale) * by.x, rounded<T>(two.y * scale) * by.y);
    }
  }
}

template <typename T, int D>
__device__ __forceinline__ void turn_head(HeadWords<D>& head, const Turns<D>& turns) {
  constexpr int kHalves = D / 64;
#pragma unroll
  for (int c = 0; c < kHalves; ++c) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      rotate<T>(head[c][w], head[c + kHalves][w], turns.cos[c][w], turns.sin[c][w]);
    }
  }
}

}  // namespace sluice::persistent
