// Attention of one token. A unit is a KV head and a range of its keys, 16 of them a tile; each warp
// takes two tiles at a time, the newest first. Keys and values come straight into the registers of
// the instructions that multiply them, those of the first tiles before the token's own queries are
// known. What several units make of a head, the last of them puts together.
//
// Products. S^T = K Q^T, O^T = V^T P^T with eight query heads as columns. Row r of a tile of keys
// is the token r % 8 / 2 * 4 + r % 2 + r / 8 * 2, so that a thread has the weights of the four
// tokens whose values it has loaded.
#pragma once

#include "decode_rotation.cuh"
#include "grid_counts.cuh"
#include "mma.cuh"
#include "persistent_products.cuh"

namespace sluice::persistent {

constexpr float kLog2e = 1.4426950408889634f;
constexpr int kKeyTile = 16;    // tokens
constexpr int kUnitTiles = 16;  // of a unit, as long as there are CTAs for more units

// What attention reads and writes in a layer.
template <typename T>
struct AttentionRows {
  const T* qkv;
  T* attended;
  const void *q_norm, *k_norm;
  T *k_cache, *v_cache;
};

template <typename T, int D>
class TokenAttention {
  static constexpr int kChunks = D / 32;
  static constexpr int kHalves = D / 64;
  static constexpr int kTiles = 2;  // of a warp at a time

 public:
  __device__ __forceinline__ TokenAttention(const PersistentDecoder& params, Shared& shared)
      : p(params), sm(shared), warp(threadIdx.x / 32), lane(threadIdx.x % 32), g(lane / 4),
        t(lane % 4), len(*params.seq_lens), group(params.q_heads / params.kv_heads) {
    const int tiles = (len + kKeyTile - 1) / kKeyTile;
    const int most = min(static_cast<int>(gridDim.x) / p.kv_heads, kMostKeySplits);
    splits = max(1, min((tiles + kUnitTiles - 1) / kUnitTiles, most));
    each = (tiles + splits - 1) / splits;
    splits = max(1, each ? (tiles + each - 1) / each : 1);
  }

  // Begins with this CTA's unit of the layer: what does not depend on the token.
  __device__ __forceinline__ void begin(const AttentionRows<T>& of_layer, int layer) {
    rows = of_layer;
    unit = (blockIdx.x + layer * kUnitTiles) % gridDim.x;
    if (!has_unit()) return;
    head = unit / splits;
    split = unit % splits;
    const int tiles = (len + kKeyTile - 1) / kKeyTile;
    last = min((split + 1) * each, tiles) - 1;
    num = max(last - split * each + 1, 0);
    look_up(0);
    load_keys(0);
    load_values(0);
    look_up(1);
  }

  __device__ __forceinline__ bool has_unit() const { return unit < p.kv_heads * splits; }

  // The rest, with the token's projections. Returns whether a head is done with it.
  __device__ __forceinline__ bool finish(int layer) {
    uint32_t q[kChunks][4];
    load_head(q, rows.qkv + (head * group + min(g, group - 1)) * D, rows.q_norm);
    if (split == splits - 1 && warp == 0 && len > 0) take_in_new();
    attend(q);
    merge_warps();
    if (splits == 1) return true;
    sync_consumers();
    if (threadIdx.x == 0) {
      const int before = arrive(&p.counts->heads[head]);
      sm.scratch.attention.is_last = before == splits * (layer + 1) - 1;
    }
    sync_consumers();
    if (!sm.scratch.attention.is_last) return false;
    merge_units();
    return true;
  }

 private:
  const PersistentDecoder& p;
  Shared& sm;
  const int warp, lane, g, t, len, group;
  int splits, each;  // tiles of a unit
  AttentionRows<T> rows;
  int unit, head, split, last, num;  // the unit's last tile and how many there are
  uint32_t keys[kTiles][kChunks][2][4], values[kTiles][kHalves][4][4];
  int64_t at[kTiles], next_at[kTiles];  // where tiles begin in the caches; -1: there is none
  float o[kHalves][4][4], max_[2], sum_[2];

  // The tile that this warp takes in a round.
  __device__ __forceinline__ int tile_of(int round, int i) const {
    const int nth = (round * kTiles + i) * kWarps + warp;
    return nth < num ? last - nth : -1;
  }

  __device__ __forceinline__ void look_up(int round) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int tile = tile_of(round, i);
      next_at[i] = -1;
      if (tile < 0) continue;
      const int token = tile * kKeyTile;
      const int64_t block = __ldg(p.blocks + token / p.block_size);
      next_at[i] =
          ((block * p.block_size + token % p.block_size) * p.kv_heads + head) * static_cast<int64_t>(D);
    }
  }

  // Of tokens that are in the cache: all but the newest.
  __device__ __forceinline__ uint4 load_old(const T* cache, int64_t tile_at, int tile, int token, int dim) const {
    if (tile_at < 0 || tile * kKeyTile + token >= len - 1) return make_uint4(0, 0, 0, 0);
    const T* from = cache + tile_at + static_cast<int64_t>(token) * p.kv_heads * D + dim;
    return load_once(from);
  }

  __device__ __forceinline__ int token_of(int half) const { return g / 2 * 4 + g % 2 + half * 2; }

  // The keys of a round, whose places have been looked up.
  __device__ __forceinline__ void load_keys(int round) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      at[i] = next_at[i];
      const int tile = tile_of(round, i);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint4 x = load_old(rows.k_cache, at[i], tile, token_of(half), c * 32 + t * 8);
          set(keys[i][c][half], x);
        }
      }
    }
  }

  // The values of a round whose keys were loaded last.
  __device__ __forceinline__ void load_values(int round) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int tile = tile_of(round, i);
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
#pragma unroll
        for (int token = 0; token < 4; ++token) {
          const uint4 x = load_old(rows.v_cache, at[i], tile, t * 4 + token, half * 64 + g * 8);
          set(values[i][half][token], x);
        }
      }
    }
  }

  static __device__ __forceinline__ void set(uint32_t (&to)[4], const uint4& x) {
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
  }

  // A head of the projection, normed and rotated: 8 dims of every 32.
  __device__ __forceinline__ void load_head(uint32_t (&to)[kChunks][4], const T* from, const void* norm) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      set(to[c], __ldcg(reinterpret_cast<const uint4*>(from + c * 32 + t * 8)));
    }
    if (norm) norm_head(to, static_cast<const T*>(norm));
    const float* cosines = p.cos_sin + *p.positions * D + t * 8;  // in the L1 after the first layer
#pragma unroll
    for (int c = 0; c < kHalves; ++c) {
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const auto* at = reinterpret_cast<const float2*>(cosines + c * 32 + w * 2);
        rotate<T>(to[c][w], to[c + kHalves][w], __ldg(at), __ldg(at + D / 4));
      }
    }
  }

  __device__ __forceinline__ void norm_head(uint32_t (&x)[kChunks][4], const T* weight) const {
    float squares = 0.f;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float2 two = Half<T>::unpack(x[c][w]);
        squares += two.x * two.x + two.y * two.y;
      }
    }
    squares += __shfl_xor_sync(~0u, squares, 1);
    squares += __shfl_xor_sync(~0u, squares, 2);
    const float scale = rsqrtf(squares / D + p.head_eps);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      uint32_t weights[4];
      set(weights, __ldg(reinterpret_cast<const uint4*>(weight + c * 32 + t * 8)));
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float2 two = Half<T>::unpack(x[c][w]), by = Half<T>::unpack(weights[w]);
        x[c][w] = Half<T>::pack(rounded<T>(two.x * scale) * by.x, rounded<T>(two.y * scale) * by.y);
      }
    }
  }

  // The token's own key and value: into the first tile of this warp, and into the cache.
  __device__ __forceinline__ void take_in_new() {
    const int token = (len - 1) % kKeyTile;
    const int64_t slot = *p.slots, to = (slot * p.kv_heads + head) * D;
    const T* k = rows.qkv + (p.q_heads + head) * D;
    const T* v = k + p.kv_heads * D;
    uint32_t key[kChunks][4];
    load_head(key, k, rows.k_norm);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (g == 0 && slot >= 0) {
        *reinterpret_cast<uint4*>(rows.k_cache + to + c * 32 + t * 8) =
            make_uint4(key[c][0], key[c][1], key[c][2], key[c][3]);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          uint32_t& word = keys[0][c][half][w];
          word = token == token_of(half) ? key[c][w] : word;
        }
      }
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const bool is_own = token / 4 == t;
      const uint4 x = __ldcg(reinterpret_cast<const uint4*>(v + half * 64 + g * 8));
      if (is_own && slot >= 0) {
        *reinterpret_cast<uint4*>(rows.v_cache + to + half * 64 + g * 8) = x;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool is_it = is_own && token % 4 == i;
        auto& words = values[0][half][i];
        words[0] = is_it ? x.x : words[0];
        words[1] = is_it ? x.y : words[1];
        words[2] = is_it ? x.z : words[2];
        words[3] = is_it ? x.w : words[3];
      }
    }
  }

  __device__ __forceinline__ void attend(const uint32_t (&q)[kChunks][4]) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) o[half][j][e] = 0.f;
      }
    }
    max_[0] = max_[1] = -INFINITY;
    sum_[0] = sum_[1] = 0.f;
#pragma unroll 1
    for (int round = 0; tile_of(round, 0) >= 0; ++round) {
      float s[kTiles][4] = {};
      multiply_keys(s, q);
      const bool more = tile_of(round + 1, 0) >= 0;
      if (more) load_keys(round + 1);
      uint32_t weights[kTiles][2];
      weigh(s, round, weights);
      multiply_values(weights);
      if (more) {
        load_values(round + 1);
        look_up(round + 2);
      }
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
      for (int d = 4; d < 32; d *= 2) sum_[e] += __shfl_xor_sync(~0u, sum_[e], d);
    }
  }

  __device__ __forceinline__ void multiply_keys(float (&s)[kTiles][4], const uint32_t (&q)[kChunks][4]) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          const auto& k = keys[i][c];
          const uint32_t a[4] = {k[0][2 * j], k[1][2 * j], k[0][2 * j + 1], k[1][2 * j + 1]};
          Half<T>::mma(s[i], a, q[c][2 * j], q[c][2 * j + 1]);
        }
      }
    }
  }

  // Scores to unnormalised weights, transposed; what has been summed up so far is made to match.
  __device__ __forceinline__ void weigh(float (&s)[kTiles][4], int round, uint32_t (&weights)[kTiles][2]) {
    float most[2] = {max_[0], max_[1]};
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int tile = tile_of(round, i);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool is_there = tile >= 0 && tile * kKeyTile + token_of(e / 2) < len;
        s[i][e] = is_there ? s[i][e] * (p.scale * kLog2e) : -INFINITY;
        most[e % 2] = fmaxf(most[e % 2], s[i][e]);
      }
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
      for (int d = 4; d < 32; d *= 2) most[e] = fmaxf(most[e], __shfl_xor_sync(~0u, most[e], d));
      const float factor = exp2f(max_[e] - most[e]);
      max_[e] = most[e];
      sum_[e] *= factor;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          o[half][j][e] *= factor;
          o[half][j][e + 2] *= factor;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[i][e] = exp2f(s[i][e] - max_[e % 2]);
        sum_[e % 2] += s[i][e];
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        weights[i][half] = transposed(Half<T>::pack(s[i][2 * half], s[i][2 * half + 1]));
      }
    }
  }

  __device__ __forceinline__ void multiply_values(const uint32_t (&weights)[kTiles][2]) {
    constexpr uint32_t kLow = 0x5410, kHigh = 0x7632;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          const auto& v = values[i][half];
          const uint32_t a[4] = {
              __byte_perm(v[0][j], v[1][j], kLow), __byte_perm(v[0][j], v[1][j], kHigh),
              __byte_perm(v[2][j], v[3][j], kLow), __byte_perm(v[2][j], v[3][j], kHigh)};
          Half<T>::mma(o[half][j], a, weights[i][0], weights[i][1]);
        }
      }
    }
  }

  __device__ __forceinline__ int64_t partial_at(int of_split) const {
    return (static_cast<int64_t>(head) * kMostKeySplits + of_split) * group;
  }

  __device__ __forceinline__ void merge_warps() {
    auto& shared = sm.scratch.attention;
    const int warps = min(num, kWarps);
    if (warp < warps) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int of = t * 2 + e;
        if (of >= group) continue;
        if (g == 0) shared.stats[warp][of] = {max_[e], sum_[e]};
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const int dim = half * 64 + g * 8 + j * 2;
            *reinterpret_cast<float2*>(&shared.out[warp][of * D + dim]) = {o[half][j][e],
                                                                          o[half][j][e + 2]};
          }
        }
      }
    }
    sync_consumers();
    for (int i = threadIdx.x; i < group * (D / 2); i += kConsumers) {
      const int of = i / (D / 2);
      float most = -INFINITY;
      for (int w = 0; w < warps; ++w) most = fmaxf(most, shared.stats[w][of].x);
      float sum = 0.f;
      float2 out = {0.f, 0.f};
      for (int w = 0; w < warps; ++w) {
        const float2 stats = shared.stats[w][of];
        const float factor = exp2f(stats.x - most);
        const float2 x = *reinterpret_cast<const float2*>(&shared.out[w][i * 2]);
        sum += stats.y * factor;
        out.x += x.x * factor;
        out.y += x.y * factor;
      }
      if (splits == 1) {
        store(i, out, sum);
      } else {
        reinterpret_cast<float2*>(p.partial_out)[partial_at(split) * (D / 2) + i] = out;
        if (i % (D / 2) == 0) p.partial_stats[partial_at(split) + of] = {most, sum};
      }
    }
  }

  __device__ __forceinline__ void merge_units() {
    for (int i = threadIdx.x; i < group * (D / 2); i += kConsumers) {
      float most = -INFINITY, sum = 0.f;
      float2 out = {0.f, 0.f};
#pragma unroll 4
      for (int j = 0; j < splits; ++j) {
        const float2 stats = __ldcg(p.partial_stats + partial_at(j) + i / (D / 2));
        const auto* from = reinterpret_cast<const float2*>(p.partial_out) + partial_at(j) * (D / 2);
        const float2 x = __ldcg(from + i);
        const float greater = fmaxf(most, stats.x);
        const float before = exp2f(most - greater), factor = exp2f(stats.x - greater);
        most = greater;
        sum = sum * before + stats.y * factor;
        out.x = out.x * before + x.x * factor;
        out.y = out.y * before + x.y * factor;
      }
      store(i, out, sum);
    }
  }

  // Two dims of this KV head's query heads.
  __device__ __forceinline__ void store(int i, float2 out, float sum) const {
    const float factor = sum > 0.f ? 1.f / sum : 0.f;
    reinterpret_cast<uint32_t*>(rows.attended + head * group * D)[i] =
        Half<T>::pack(out.x * factor, out.y * factor);
  }
};

}  // namespace sluice::persistent
