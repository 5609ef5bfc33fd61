// How the attention of a few tokens is cut into units: a token's KV head and a range of its keys.
#pragma once

#include "decoder/persistent_gemm.cuh"

namespace sluice::persistent {

constexpr int kKeyTile = 16;        // tokens
constexpr int kUnitTiles = kWarps;  // of a unit, at least
static_assert(kMostDraftedTokens <= kKeyTile);  // in no more than two tiles

template <bool kDrafts>
class Units {
 public:
  int count;

  // Deals out the keys. All CTAs work at once, if none gets twice its part for that.
  __device__ __forceinline__ Units(const PersistentDecoder& params, Shared& shared)
      : p(params), sm(shared) {
    int total = 0;
#pragma unroll 1
    for (int token = 0; token < p.tokens; ++token) total += tiles(token);
    const int ctas = gridDim.x, fair = max(kUnitTiles, (total * p.kv_heads + ctas - 1) / ctas);
    int most = fair;  // tiles of a unit
#pragma unroll 1
    while (most < 2 * fair && parts(p.tokens, most) * p.kv_heads > ctas) most += (fair + 15) / 16;
    count = parts(p.tokens, most) * p.kv_heads;
    if (threadIdx.x < p.tokens) sm.unit_ends[threadIdx.x] = parts(threadIdx.x + 1, most);
    if (threadIdx.x == 0) sm.num_units = count;
    sync_consumers();
  }

  __device__ __forceinline__ Unit open(int index) const {
    Unit unit;
    const int nth = index / p.kv_heads;
    unit.index = index;
    unit.head = index % p.kv_heads;
    unit.token = 0;
    while (sm.unit_ends[unit.token] <= nth) ++unit.token;
    const int begin = unit.token ? sm.unit_ends[unit.token - 1] : 0;
    unit.split = nth - begin;
    unit.splits = sm.unit_ends[unit.token] - begin;
    unit.len = len(unit.token);
    const int all = tiles(unit.token), each = (all + unit.splits - 1) / unit.splits;
    unit.last = min((unit.split + 1) * each, all) - 1;
    unit.num = max(unit.last - unit.split * each + 1, 0);
    unit.position = p.positions[unit.token];
    unit.slot = p.slots[unit.token];
    return unit;
  }

 private:
  const PersistentDecoder& p;
  Shared& sm;

  // How many keys it sees.
  __device__ __forceinline__ int len(int token) const {
    if constexpr (!kDrafts) return p.seq_lens[token];
    const int later = p.queries - 1 - token % p.queries;
    return max(p.seq_lens[token / p.queries] - later, 0);
  }

  __device__ __forceinline__ int tiles(int token) const {
    return (len(token) + kKeyTile - 1) / kKeyTile;
  }

  // Of so many tokens, with up to `most` tiles; a token has one at least.
  __device__ __forceinline__ int parts(int tokens, int most) const {
    int total = 0;
#pragma unroll 1
    for (int token = 0; token < tokens; ++token) {
      total += max(1, (tiles(token) + most - 1) / most);
    }
    return total;
  }
};

}  // namespace sluice::persistent
