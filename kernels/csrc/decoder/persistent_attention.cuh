// Attention of a few tokens, in units (persistent_units.cuh) of tiles of 16 keys. Each warp takes a
// tile at a time, the newest first. Keys and values come straight into the registers of the
// instructions that multiply them, those of the first tiles before the token's own queries are
// known. What several units make of a head, the one with the newest key puts together; units that
// it waits for come before it, so nobody waits in a circle.
//
// Drafts. Tokens of one sequence see each other's keys. No CTA reads in the caches what another one
// writes there in this launch: they hold what came before the sequence's first token, and each unit
// makes later keys itself, from the projections that all wait for anyway. At most eight, they are
// in the token's last two tiles, so they are taken in in the first round, by at most two warps.
//
// Products. S^T = K Q^T, O^T = V^T P^T with eight query heads as columns. Row r of a tile of keys
// is the token r % 8 / 2 * 4 + r % 2 + r / 8 * 2, so that a thread has the weights of the four
// tokens whose values it has loaded.
//
// Code. It comes cold into the instruction caches in every layer; so there is one place that loads
// keys and one that loads values.
#pragma once

#include "common/mma.cuh"
#include "decoder/persistent_heads.cuh"
#include "decoder/persistent_units.cuh"

namespace sluice::persistent {

constexpr float kLog2e = 1.4426950408889634f;

// What attention reads and writes in a layer.
template <typename T>
struct AttentionRows {
  const T* qkv;
  T* attended;
  float* parts;
  const void *q_norm, *k_norm;
  T *k_cache, *v_cache;
};

// kDrafts: sequences may have more than one token.
template <typename T, int D, int kGroups, bool kDrafts>
class TokenAttention {
  static constexpr int kChunks = D / 32;
  static constexpr int kHalves = D / 64;

 public:
  __device__ __forceinline__ TokenAttention(const PersistentDecoder& params, Shared& shared)
      : p(params), sm(shared), unit(shared.unit), warp(threadIdx.x / 32), lane(threadIdx.x % 32),
        g(lane / 4), t(lane % 4), group(params.q_heads / params.kv_heads), units(params, shared) {
    if (blockIdx.x < units.count) open(blockIdx.x);
  }

  // This CTA's units of a layer.
  __device__ __forceinline__ void run(const AttentionRows<T>& of_layer) {
    rows = of_layer;
#pragma unroll 1
    for (int index = blockIdx.x; index < units.count; index += gridDim.x) {
      if (units.count > gridDim.x) open(index);  // else it is the same in every layer
      Held own = {};
      attend(own);
      sync_consumers();  // the sums of the last product have been read
      merge_warps(own);
      sync_consumers();
    }
  }

 private:
  const PersistentDecoder& p;
  Shared& sm;
  const Unit& unit;
  const int warp, lane, g, t, group;
  const Units<kDrafts> units;
  AttentionRows<T> rows;
  // Of drafted tokens' unit: whose it is, and how many of its keys the caches hold.
  int sequence = 0, stored = 0;

  // What a warp has of a unit.
  struct Held {
    uint32_t keys[kChunks][2][4], values[kHalves][4][4];
    float o[kHalves][4][4], max[2], sum[2];
  };

  __device__ __forceinline__ void open(int index) {
    sync_consumers();
    if (threadIdx.x == 0) sm.unit = units.open(index);
    sync_consumers();
    if constexpr (kDrafts) {
      sequence = unit.token / p.queries;
      stored = unit.len - 1 - unit.token % p.queries;
    }
    const int64_t place = place_of(tile_of(0));
    if (lane == 0) sm.places[warp] = place;
    __syncwarp();
  }

  __device__ __forceinline__ const T* token_row() const {
    return rows.qkv + static_cast<int64_t>(unit.token) * (p.q_heads + 2 * p.kv_heads) * D;
  }

  __device__ __forceinline__ int tile_of(int round) const { return unit.tile(round, warp); }

  // Where this head's keys of a tile are in the caches.
  __device__ __forceinline__ int64_t place_of(int tile) const {
    const int first = max(tile, 0) * kKeyTile, nth = first / p.block_size;
    const int of = kDrafts ? sequence : unit.token;
    const int64_t block = __ldg(p.blocks + of * p.max_blocks + nth);
    return ((block * p.block_size + first - nth * p.block_size) * p.kv_heads + unit.head) * D;
  }

  // Which key of a tile rows lane / 4 and, half, eight further are.
  __device__ __forceinline__ int key_of(int half) const { return g / 2 * 4 + g % 2 + half * 2; }

  // Where a key of a tile is in the caches, or null if it is not there: past the end may be NaN,
  // and the newest are not stored yet.
  __device__ __forceinline__ const T* old(const T* cache, int64_t place, int tile, int key) const {
    const bool is_there = tile * kKeyTile + key < (kDrafts ? stored : unit.len - 1);
    return is_there ? cache + place + key * p.kv_heads * D : nullptr;
  }

  static __device__ __forceinline__ void load_old(uint32_t (&to)[4], const T* from, int dim) {
    uint4 x = make_uint4(0, 0, 0, 0);
    if (from) x = load_once(from + dim);
    set_words(to, x);
  }

  __device__ __forceinline__ void load_keys(Held& own, int64_t place, int tile) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const T* from = old(rows.k_cache, place, tile, key_of(half));
#pragma unroll
      for (int c = 0; c < kChunks; ++c) load_old(own.keys[c][half], from, c * 32 + t * 8);
    }
  }

  __device__ __forceinline__ void load_values(Held& own, int64_t place, int tile) const {
#pragma unroll
    for (int key = 0; key < 4; ++key) {
      const T* from = old(rows.v_cache, place, tile, t * 4 + key);
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        load_old(own.values[half][key], from, half * 64 + g * 8);
      }
    }
  }

  __device__ __forceinline__ void turn(HeadWords<D>& of, const void* norm,
                                       const Turns<D>& turns) const {
    if (norm) norm_head<T, D>(of, static_cast<const T*>(norm), p.head_eps, t);
    turn_head<T, D>(of, turns);
  }

  // The token's own key and value: into the first tile of this warp, and into the cache.
  __device__ __forceinline__ void take_in_new(Held& own, const uint32_t (&key)[kChunks][4],
                                              const uint32_t (&value)[kHalves][4],
                                              int64_t slot) const {
    const int newest = (unit.len - 1) % kKeyTile;
    const bool is_own = newest / 4 == t;  // has the token's value
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        replace(own.keys[c][half], key[c], newest == key_of(half));
      }
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        replace(own.values[half][i], value[half], is_own && newest % 4 == i);
      }
    }
    if (slot < 0) return;
    const int64_t to = (slot * p.kv_heads + unit.head) * D;
    if (g == 0) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) store_words(rows.k_cache + to + c * 32 + t * 8, key[c]);
    }
    if (is_own) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        store_words(rows.v_cache + to + half * 64 + g * 8, value[half]);
      }
    }
  }

  static __device__ __forceinline__ void store_words(T* to, const uint32_t (&words)[4]) {
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  }

  // Without a branch, for which arrays would be in memory.
  static __device__ __forceinline__ void replace(uint32_t (&to)[4], const uint32_t (&by)[4],
                                                 bool condition) {
#pragma unroll
    for (int w = 0; w < 4; ++w) to[w] = condition ? by[w] : to[w];
  }

  // As before the first key.
  static __device__ __forceinline__ void forget(Held& own) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      own.max[e] = -INFINITY;
      own.sum[e] = 0.f;
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) own.o[half][j][e] = 0.f;
      }
    }
  }

  // Waits for the token's projections: queries, and for one warp its key and value.
  __device__ __forceinline__ void take_in_token(Held& own, uint32_t (&q)[kChunks][4]) const {
    const bool has_newest = unit.split == unit.splits - 1 && warp == 0 && unit.len > 0;
    Turns<D> turns;
    turns.load(p.cos_sin + unit.position * D, t);
    uint32_t key[kChunks][4] = {}, value[kHalves][4] = {};
    const T* of_head = token_row() + (unit.head * group + min(g, group - 1)) * D;
    const T* newest = token_row() + (p.q_heads + unit.head) * D;
    SpinLimit limit;
    uint32_t most;
    do {
      limit.check();
      look_at_head<T, D>(q, of_head, t);
      if (has_newest) {  // all that is asked for is under way before any of it is needed
        look_at_head<T, D>(key, newest, t);
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          look(value[half], newest + p.kv_heads * D + half * 64 + g * 8);
        }
      }
      most = 0;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        most = greatest(most, greatest_of(q[c]), greatest_of(key[c]));
      }
#pragma unroll
      for (int half = 0; half < kHalves; ++half) most = greatest(most, greatest_of(value[half]), 0);
    } while (__any_sync(~0u, lacks_half(most)));
    turn(q, rows.q_norm, turns);
    if (has_newest) {
      turn(key, rows.k_norm, turns);
      take_in_new(own, key, value, unit.slot);
    }
  }

  // Of tokens in the launch, from this one's sequence.
  __device__ __forceinline__ bool is_new(int key) const {
    return key >= stored && key < unit.len;
  }

  // Where the projection of a key is that is_new.
  __device__ __forceinline__ const T* new_key(int key) const {
    const int token = unit.token - (unit.len - 1 - key);
    return rows.qkv + (token * (p.q_heads + 2 * p.kv_heads) + p.q_heads + unit.head) * D;
  }

  // Waits for the token's queries and, in a tile that has any, for the keys and values of this
  // launch that it sees. Each lands where it would have been loaded from the caches; all that is
  // asked for is under way before any of it is needed.
  __device__ __forceinline__ void take_in_drafted(Held& own, uint32_t (&q)[kChunks][4]) const {
    const int tile = tile_of(0), first = tile * kKeyTile;
    const bool has_new = tile >= 0 && first + kKeyTile > stored;
    Turns<D> turns;
    turns.load(p.cos_sin + unit.position * D, t);
    const T* of_head = token_row() + (unit.head * group + min(g, group - 1)) * D;
    SpinLimit limit;
    uint32_t most;
    do {
      limit.check();
      look_at_head<T, D>(q, of_head, t);
      most = has_new ? look_at_new(own, first) : 0;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) most = greatest(most, greatest_of(q[c]), 0);
    } while (__any_sync(~0u, lacks_half(most)));
    turn(q, rows.q_norm, turns);
    if (!has_new) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) turn_new(own, first + key_of(half), half);
    if (unit.slot >= 0) store_newest(own, first);
  }

  // Returns the greatest of all that was not in the caches.
  __device__ __forceinline__ uint32_t look_at_new(Held& own, int first) const {
    uint32_t most = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = first + key_of(half);
      if (!is_new(key)) continue;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) look(own.keys[c][half], new_key(key) + c * 32 + t * 8);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first + t * 4 + i;
      if (!is_new(key)) continue;
      const T* from = new_key(key) + p.kv_heads * D + g * 8;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) look(own.values[half][i], from + half * 64);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!is_new(first + key_of(half))) continue;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) most = greatest(most, greatest_of(own.keys[c][half]), 0);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!is_new(first + t * 4 + i)) continue;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        most = greatest(most, greatest_of(own.values[half][i]), 0);
      }
    }
    return most;
  }

  // Norms and rotates what came as the key of these four threads, if it is new: all lanes take
  // part, as the norm's sums go through shuffles.
  __device__ __forceinline__ void turn_new(Held& own, int nth, int half) const {
    Turns<D> turns;
    const int before = is_new(nth) ? unit.len - 1 - nth : 0;
    turns.load(p.cos_sin + (unit.position - before) * D, t);
    uint32_t key[kChunks][4];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int w = 0; w < 4; ++w) key[c][w] = own.keys[c][half][w];
    }
    turn(key, rows.k_norm, turns);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) replace(own.keys[c][half], key[c], is_new(nth));
  }

  // The token's own key and value into the cache, by the warp whose tile has them: the others of
  // its sequence are stored by units of their own tokens.
  __device__ __forceinline__ void store_newest(const Held& own, int first) const {
    const int newest = unit.len - 1 - first;
    const int64_t to = (unit.slot * p.kv_heads + unit.head) * D;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (newest != key_of(half)) continue;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        store_words(rows.k_cache + to + c * 32 + t * 8, own.keys[c][half]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (newest != t * 4 + i) continue;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        store_words(rows.v_cache + to + half * 64 + g * 8, own.values[half][i]);
      }
    }
  }

  __device__ __forceinline__ void attend(Held& own) {
    uint32_t q[kChunks][4] = {};
    int64_t place = sm.places[warp];
    // One round only loads, and one tries what the others do, while the queries are on their way:
    // its instructions come cold.
    constexpr int kLoad = -2, kTrial = -1;
#pragma unroll 1
    for (int round = kLoad;; ++round) {
      const int next = round == kTrial ? -1 : tile_of(round == kLoad ? 0 : round + 1);
      float s[4] = {};
      if (round != kLoad) multiply_keys(s, own, q);
      if (next >= 0) load_keys(own, place, next);
      if (round != kLoad) {
        uint32_t weights[2];
        weigh(own, s, tile_of(max(round, 0)), weights);
        multiply_values(own, weights);
      }
      if (next >= 0) load_values(own, place, next);
      if (round != kTrial) place = place_of(tile_of(round == kLoad ? 1 : round + 2));
      if (round == kTrial) {
        forget(own);
        if constexpr (kDrafts) {
          take_in_drafted(own, q);
        } else {
          take_in_token(own, q);
        }
        if (tile_of(0) < 0) break;
      } else if (round >= 0 && next < 0) {
        break;
      }
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
      for (int d = 4; d < 32; d *= 2) own.sum[e] += __shfl_xor_sync(~0u, own.sum[e], d);
    }
  }

  __device__ __forceinline__ void multiply_keys(float (&s)[4], const Held& own,
                                                const uint32_t (&q)[kChunks][4]) const {
    float other[4] = {};  // so that no product waits for the last one
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const auto& k = own.keys[c];
        const uint32_t a[4] = {k[0][2 * j], k[1][2 * j], k[0][2 * j + 1], k[1][2 * j + 1]};
        Half<T>::mma(j ? other : s, a, q[c][2 * j], q[c][2 * j + 1]);
      }
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) s[e] += other[e];
  }

  // Scores to unnormalised weights, transposed; what has been summed up so far is made to match.
  __device__ __forceinline__ void weigh(Held& own, float (&s)[4], int tile,
                                        uint32_t (&weights)[2]) const {
    float most[2] = {own.max[0], own.max[1]};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const bool is_there = tile * kKeyTile + key_of(e / 2) < unit.len;
      s[e] = is_there ? s[e] * (p.scale * kLog2e) : -INFINITY;
      most[e % 2] = fmaxf(most[e % 2], s[e]);
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
      for (int d = 4; d < 32; d *= 2) most[e] = fmaxf(most[e], __shfl_xor_sync(~0u, most[e], d));
      const float factor = exp2f(own.max[e] - most[e]);
      own.max[e] = most[e];
      own.sum[e] *= factor;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          own.o[half][j][e] *= factor;
          own.o[half][j][e + 2] *= factor;
        }
      }
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      s[e] = exp2f(s[e] - own.max[e % 2]);
      own.sum[e % 2] += s[e];
    }
    weights[0] = transposed(Half<T>::pack(s[0], s[1]));
    weights[1] = transposed(Half<T>::pack(s[2], s[3]));
  }

  __device__ __forceinline__ void multiply_values(Held& own, const uint32_t (&weights)[2]) const {
    constexpr uint32_t kLow = 0x5410, kHigh = 0x7632;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const auto& v = own.values[half];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t a[4] = {
            __byte_perm(v[0][j], v[1][j], kLow), __byte_perm(v[0][j], v[1][j], kHigh),
            __byte_perm(v[2][j], v[3][j], kLow), __byte_perm(v[2][j], v[3][j], kHigh)};
        Half<T>::mma(own.o[half][j], a, weights[0], weights[1]);
      }
    }
  }

  // Where a split of this head hands over what it has made of a query head.
  __device__ __forceinline__ float* part_of(int split, int of) const {
    const int index = unit.index + (split - unit.split) * p.kv_heads;
    return rows.parts + (static_cast<int64_t>(index) * group + of) * (D + 2);
  }

  __device__ __forceinline__ void merge_warps(const Held& own) {
    auto& out_of = sm.scratch.attended;
    const int warps = min(unit.num, kWarps);
    if (warp < warps) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int of = t * 2 + e;
        if (of >= group) continue;
        if (g == 0) sm.stats[warp][of] = {own.max[e], own.sum[e]};
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const int dim = half * 64 + g * 8 + j * 2;
            *reinterpret_cast<float2*>(&out_of[warp][of * D + dim]) = {own.o[half][j][e],
                                                                          own.o[half][j][e + 2]};
          }
        }
      }
    }
    sync_consumers();
    for (int i = threadIdx.x; i < group * (D / 2); i += kConsumers) {
      const int of = i / (D / 2);
      float most = -INFINITY;
#pragma unroll 1
      for (int w = 0; w < warps; ++w) most = fmaxf(most, sm.stats[w][of].x);
      float sum = 0.f;
      float2 out = {0.f, 0.f};
#pragma unroll 2
      for (int w = 0; w < warps; ++w) {
        const float2 stats = sm.stats[w][of];
        const float factor = exp2f(stats.x - most);
        const float2 x = *reinterpret_cast<const float2*>(&out_of[w][i * 2]);
        sum += stats.y * factor;
        out.x += x.x * factor;
        out.y += x.y * factor;
      }
      const int dim = i % (D / 2) * 2;
      if (unit.split == unit.splits - 1) {
        merge_splits(out, most, sum, of, dim);
        store(i, out, sum);
      } else {
        float* to = part_of(unit.split, of);
        hand_over(reinterpret_cast<float2*>(to + dim), out);
        if (dim == 0) hand_over(reinterpret_cast<float2*>(to + D), float2{most, sum});
      }
    }
  }

  // Adds what the other splits have made of two dims of a query head.
  __device__ __forceinline__ void merge_splits(float2& out, float most, float& sum, int of,
                                               int dim) const {
    constexpr int kAtOnce = 4;
    SpinLimit limit;
#pragma unroll 1
    for (int first = 0; first < unit.splits - 1; first += kAtOnce) {
      float2 x[kAtOnce], stats[kAtOnce];
      bool lacks_one;
      do {
        limit.check();
        lacks_one = false;
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const float* from = part_of(min(first + j, unit.splits - 2), of);
          look(x[j], reinterpret_cast<const float2*>(from + dim));
          look(stats[j], reinterpret_cast<const float2*>(from + D));
        }
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          lacks_one |= lacks(x[j].x) || lacks(x[j].y) || lacks(stats[j].x) || lacks(stats[j].y);
        }
      } while (lacks_one);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (first + j >= unit.splits - 1) break;
        const float greater = fmaxf(most, stats[j].x);
        const float before = exp2f(most - greater), factor = exp2f(stats[j].x - greater);
        most = greater;
        sum = sum * before + stats[j].y * factor;
        out.x = out.x * before + x[j].x * factor;
        out.y = out.y * before + x[j].y * factor;
      }
    }
  }

  // Two dims of this KV head's query heads.
  __device__ __forceinline__ void store(int i, float2 out, float sum) const {
    const float factor = sum > 0.f ? 1.f / sum : 0.f;
    T* to = rows.attended + packed_at<kGroups>(unit.token, unit.head * group * D + i * 2);
    hand_over(reinterpret_cast<uint32_t*>(to), Half<T>::pack(out.x * factor, out.y * factor));
  }
};

}  // namespace sluice::persistent
