// Where the phases of a layer hand each other rows, in memory that is empty (exchange.cuh) when the
// layer begins.
//
// Three exchanges take turns. Once all CTAs have ended layer l, all have read what it handed over:
// each empties its part of the exchange, and then says that it has ended layer l + 1. Who knows
// that all have said so may write there again, for layer l + 3; the first who does is in the last
// phase of l + 2. A warp of each CTA keeps these books, with counts and fences that nobody waits
// for: CTAs are hardly a phase apart. Between launches all exchanges are empty.
#pragma once

#include "common/exchange.cuh"
#include "common/grid_counts.cuh"
#include "decoder/persistent_ring.cuh"

namespace sluice::persistent {

// Where element k of a token is in a packed row: 32 elements of all tokens follow each other.
template <int kGroups>
__device__ __forceinline__ int packed_at(int token, int k) {
  return (k / 32 * (kGroups * 8) + token) * 32 + k % 32;
}

// The exchange of a layer. Its rows are worked out when they are needed: few registers stay in use.
template <typename T, int D, int kGroups>
class Exchange {
  static constexpr int kTokens = kGroups * 8;
  static constexpr int kSquares = kTokens * kMostPersistentCtas;

 public:
  __device__ __forceinline__ Exchange(const PersistentDecoder& params, int layer)
      : p(params), base(claims_of(params, layer)) {}

  // [tokens, CTAs], of the rows that are normed before qkv or, mid, before the gates.
  __device__ __forceinline__ float* squares(bool mid) const {
    return reinterpret_cast<float*>(base + 128) + (mid ? kSquares : 0);
  }
  // Packed [hidden].
  __device__ __forceinline__ T* normed(bool mid) const { return row(mid ? p.hidden : 0); }
  // [tokens, features]
  __device__ __forceinline__ T* qkv() const { return row(2 * p.hidden); }
  // Packed [q_heads * D].
  __device__ __forceinline__ T* attended() const { return row(2 * p.hidden + features()); }
  // Packed [intermediate].
  __device__ __forceinline__ T* activated() const {
    return row(2 * p.hidden + features() + p.q_heads * D);
  }
  // Of units' heads: D sums, a maximum and the sum of weights.
  __device__ __forceinline__ float* parts() const {
    return reinterpret_cast<float*>(
        row(2 * p.hidden + features() + p.q_heads * D + p.intermediate));
  }

  __device__ __forceinline__ int features() const { return (p.q_heads + 2 * p.kv_heads) * D; }

  // All that so many units' layers use.
  __device__ __forceinline__ int64_t bytes(int units) const {
    const int64_t rows = static_cast<int64_t>(units) * (p.q_heads / p.kv_heads);
    return reinterpret_cast<const uint8_t*>(parts() + rows * (D + 2)) - base;
  }

 private:
  const PersistentDecoder& p;
  uint8_t* const base;

  // After so many elements of each token.
  __device__ __forceinline__ T* row(int elements) const {
    return reinterpret_cast<T*>(base + 128 + 2 * kSquares * sizeof(float)) + elements * kTokens;
  }
};

// Keeps the books of the exchanges. For one warp.
template <typename T, int D, int kGroups>
class Keeper {
 public:
  __device__ Keeper(const PersistentDecoder& params, Shared& shared)
      : p(params), sm(shared), lane(threadIdx.x % 32) {}

  __device__ void run() {
    int parity = 0;
#pragma unroll 1
    for (int layer = 0; layer < p.num_layers; ++layer, parity ^= 1) {
      mbarrier_wait(address(&sm.ended), parity);
      if (lane == 0) {
        publish(&p.counts->ended);
        await_count(&p.counts->ended, (layer + 1) * gridDim.x);
        set_shared(address(&sm.layers), layer + 1);
      }
      __syncwarp();
      clear(layer);
    }
    if (lane == 0) leave();
  }

 private:
  const PersistentDecoder& p;
  Shared& sm;
  const int lane;

  __device__ void clear(int layer) const {
    uint8_t* from = claims_of(p, layer);
    const int64_t bytes = Exchange<T, D, kGroups>(p, layer).bytes(sm.num_units);
    for (int64_t i = (blockIdx.x * 32 + lane) * 16; i < bytes; i += gridDim.x * 32 * 16) {
      empty(from + i);
    }
    __syncwarp();
  }

  // The last CTA makes the counts ready for the next launch.
  __device__ void leave() const {
    if (arrive(&p.counts->left) == static_cast<int>(gridDim.x) - 1) {
      p.counts->ended = p.counts->left = 0;
    }
  }
};

}  // namespace sluice::persistent
