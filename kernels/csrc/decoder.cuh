// Attention of a few query tokens per sequence (decode, speculative verification) over a paged KV
// cache: split-KV in the manner of stream-K, grouped query heads packed into the MMA rows.
//
// Work. The KV of a sequence and a KV head is cut into tiles of 64 tokens. All tiles form one line
// (decode_line.cuh), which is dealt out in equal spans, so that the SMs finish together whatever the
// lengths are. A span is worked on by `columns` CTAs side by side, one for each of as many
// neighbouring heads: together they read whole tokens, 2 KB in a row, which DRAM likes best. An item
// (sequence, head) that lies within one span is written directly. One that is cut by span borders
// leaves partial results (max, sum, unnormalised output) in the workspace, and the CTA that arrives
// last merges them. The line and the place where each span starts are computed on the device once
// per step and shared by all layers, so the launch has a fixed shape, can live in a CUDA graph, and
// begins with one load instead of a search.
//
// A CTA has four warps; warp w owns tokens [16w, 16w+16) of every tile, and loads them itself into
// its own ring of shared-memory stages, so the main loop has no block-wide barrier. K and V of a
// stage are separate copies: the place of K is refilled as soon as the scores are computed, so that
// nearly the whole ring is in flight all the time, which is what saturates HBM. The ring runs
// across item borders: while one item is finished, the tiles of the next are already in flight.
//
// Rows of an item: row r = query token r / group, query head r % group of the KV head.

#pragma once

#include "decode_line.cuh"
#include "decode_tile.cuh"
#include "dependent_launch.cuh"
#include "mma.cuh"

namespace sluice {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kTile = kDecodeTile;
static_assert(kWarps == kDecodeTile / 16);
constexpr int kWarpTokens = kTile / kWarps;  // 16
constexpr float kLog2e = 1.4426950408889634f;

template <int D, int kTileBytes, int kRowTiles, int kStages>
struct Shared {
  uint8_t ring[kWarps][kStages][2][kTileBytes];  // K then V
  float out[kRowTiles * 16 * D];
  float max[kWarps][kRowTiles * 16];
  float sum[kWarps][kRowTiles * 16];
  float2 stats[kRowTiles * 16];  // max and sum over the warps
  int last;
};

// What a kernel can do beyond plain attention. Code that is not there counts: in a model the kernel
// comes cold into the instruction caches for every layer.
enum class Extras {
  kNone,
  kScores,  // soft cap or ALiBi
  kShared,  // results for shared keys, found by shared_prefix, are merged in
};

// T: of queries and output; Tile: how the cache is stored (decode_tile.cuh).
template <typename T, typename Tile, int D, int kRowTiles, int kStages, Extras kExtras>
class Decoder {
  using Stored = typename Tile::Stored;
  using Math = typename Tile::Math;
  using Memory = Shared<D, Tile::kBytes, kRowTiles, kStages>;
  static constexpr int kPieceElems = 16 / sizeof(Stored);
  static constexpr int kPieces = D / kPieceElems;  // 16-byte pieces of a row
  static constexpr int kSteps = D / 16;            // MMA steps along the head dimension
  static constexpr int kLoads = kWarpTokens * kPieces / 32;  // per lane, for K and for V

 public:
  __device__ Decoder(const DecodeParams& params, Memory& shared)
      : p(params), sm(shared), warp(threadIdx.x / 32), lane(threadIdx.x % 32) {
    ring = static_cast<uint32_t>(__cvta_generic_to_shared(&sm.ring[warp][0][0][0]));
  }

  __device__ void run() {
    // Nothing but the newest tokens and the queries comes from the kernel right before.
    bool waited = p.wait_first;
    if (waited) wait_for_inputs();
    const DecodeStart& start = p.starts[blockIdx.x / p.columns];
    Cursor work = start.cursor;
    int block = start.blocks[warp], next_block = start.blocks[kWarps + warp];
    const int total = p.line->total, span = p.line->span;
    const int begin = blockIdx.x / p.columns * span;
    const int end = min(begin + span, total);
    if (begin >= end) {
      if (!waited) wait_for_inputs();  // a kernel must not end before the one before it
      return;
    }
    if (threadIdx.x == 0) prefetch_l2(&p.arrivals[work.seq * p.num_kv_items + head_of(work)]);

    Cursor load = work;
    int to_load = end - begin;
#pragma unroll 1
    for (int s = 0; s < kStages; ++s) {
      // The blocks of the first two tiles come with the start, which saves a dependent load.
      const Source source =
          next_source(load, to_load, s == 0 ? block : s == 1 ? next_block : kLookUp);
      if (!waited && source.tokens - source.new_tokens < kWarpTokens) {
        wait_for_inputs();
        waited = true;
      }
      copy(source, source.k, s, 0);
      copy(source, source.v, s, 1);
    }
    if (!waited) wait_for_inputs();

    int stage = 0;
    for (int i = begin; i < end;) {
      open_item(work);
      const int item_begin = i - work.tile, item_end = item_begin + work.num_tiles;
      for (const int stop = min(item_end, end); i < stop; ++i, ++work.tile) {
        consume(work, stage, load, to_load);
        stage = stage + 1 == kStages ? 0 : stage + 1;
      }
      close_item(work, item_begin, item_end, begin, span);
      if (i < end) {
        --work.tile;
        advance(p.line_shape, work);
      }
    }
  }

 private:
  const DecodeParams& p;
  Memory& sm;
  const int warp, lane;
  uint32_t ring;
  uint32_t q[kRowTiles][kSteps][4];
  float o[kRowTiles][kSteps * 2][4];
  float row_max[kRowTiles][2];
  float row_sum[kRowTiles][2];
  float key_scale;  // of the item's keys, in FP8, together with that of all scores

  __device__ int head_of(const Cursor& c) const {
    return c.head * p.columns + static_cast<int>(blockIdx.x) % p.columns;
  }

  __device__ int kv_head(const Cursor& c) const { return head_of(c) / p.parts; }

  __device__ const T* query_row(const Cursor& c, int r) const {
    return static_cast<const T*>(p.q) +
           static_cast<int64_t>(c.query_start + r / p.group) * p.q_stride +
           static_cast<int64_t>(head_of(c) * p.group + r % p.group) * D;
  }

  static __device__ const Stored* stored(const void* cache) {
    return static_cast<const Stored*>(cache);
  }

  // Where 16 tokens of a tile come from.
  struct Source {
    const Stored* k;
    const Stored* v;
    int tokens;      // from the first of the 16 to the sequence's end, past which may be NaN
    int new_tokens;  // of these, computed in this step
  };

  static constexpr int kLookUp = -1;

  // This warp's tokens of the tile under the cursor; moves the cursor on.
  __device__ Source next_source(Cursor& c, int& to_load, int block = kLookUp) {
    if (to_load == 0) return {stored(p.k_cache), stored(p.v_cache), 0, 0};
    const int token0 = (c.first_tile + c.tile) * kTile + warp * kWarpTokens;
    if (block == kLookUp) block = block_of(p.table, c, token0);
    const int64_t base = static_cast<int64_t>(block) * p.block_stride +
                         static_cast<int64_t>(token0 % p.table.block_size) * p.token_stride +
                         static_cast<int64_t>(kv_head(c)) * D;
    if (c.tile == 0 && warp == 0 && lane < c.num_queries * p.group) {
      prefetch_l2(query_row(c, lane));  // open_item will want it in a moment
    }
    const int tokens = c.seq_len - token0, new_tokens = c.num_queries;
    if (--to_load > 0) advance(p.line_shape, c);
    return {stored(p.k_cache) + base, stored(p.v_cache) + base, tokens, new_tokens};
  }

  // Starts the copy of one half (K = 0, V = 1) of a stage, as one group.
  __device__ void copy(const Source& source, const Stored* src, int stage, int half) {
    const uint32_t dst = ring + (stage * 2 + half) * Tile::kBytes;
    if (source.tokens > 0) {
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
        const int piece = j * 32 + lane;
        const int row = piece / kPieces, col = piece % kPieces;
        cp_async_16(dst + Tile::place(row, col), src + row * p.token_stride + col * kPieceElems,
                    row < source.tokens);
      }
    }
    cp_async_commit();
  }

  __device__ void open_item(const Cursor& c) {
    const int rows = c.num_queries * p.group;
    if constexpr (Tile::kFp8) key_scale = p.scale * p.k_scale[kv_head(c)];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = m * 16 + half * 8 + lane / 4;
        const T* src = query_row(c, r) + Tile::query_dim(0, 0, lane);
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
#pragma unroll
          for (int high = 0; high < 2; ++high) {
            const T* at = src + Tile::query_dim(s, high, 0);  // lanes add to it, whatever the step
            const auto* pair = reinterpret_cast<const uint32_t*>(at);
            q[m][s][half + high * 2] = r < rows ? Tile::query(*pair) : 0u;
          }
        }
        row_max[m][half] = -INFINITY;
        row_sum[m][half] = 0.f;
      }
#pragma unroll
      for (int n = 0; n < kSteps * 2; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) o[m][n][e] = 0.f;
      }
    }
  }

  __device__ float score_scale() const {
    if constexpr (Tile::kFp8) {
      return key_scale;
    } else {
      return p.scale;
    }
  }

  // The masked score of a key for the query at query_pos, times log2(e).
  __device__ float score(const Cursor& c, float s, int row, int query_pos, int key) const {
    const int window = p.line_shape.window;
    s *= score_scale();
    if constexpr (kExtras == Extras::kScores) {
      if (p.soft_cap > 0.f) s = p.soft_cap * tanhf(s / p.soft_cap);
      if (p.alibi_slopes) {
        s += p.alibi_slopes[head_of(c) * p.group + row % p.group] * (key - query_pos);
      }
    }
    const bool seen = key <= query_pos && (window <= 0 || key > query_pos - window);
    return seen ? s * kLog2e : -INFINITY;
  }

  // Takes the tile in `stage` into account and refills its two halves as soon as they are free.
  __device__ void consume(const Cursor& c, int stage, Cursor& load, int& to_load) {
    constexpr int kNewer = 2 * kStages - 1;  // groups issued after the one that is waited for
    const uint32_t k_tile = ring + stage * (2 * Tile::kBytes);
    const uint32_t v_tile = k_tile + Tile::kBytes;
    const int token0 = (c.first_tile + c.tile) * kTile + warp * kWarpTokens;
    const bool live = token0 < c.seq_len;
    const Source source = next_source(load, to_load);

    float s[kRowTiles][2][4] = {};
    cp_async_wait<kNewer>();
    __syncwarp();
    if (live) scores(c, k_tile, token0, s);
    __syncwarp();
    copy(source, source.k, stage, 0);

    uint32_t a[kRowTiles][4];
    if (live) {
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) softmax(m, s[m], a[m]);
    }
    cp_async_wait<kNewer>();
    __syncwarp();
    if (live) accumulate(v_tile, a);
    __syncwarp();
    copy(source, source.v, stage, 1);
  }

  // s = the masked scores of this warp's 16 keys, times log2(e).
  __device__ void scores(const Cursor& c, uint32_t k_tile, int token0,
                         float (&s)[kRowTiles][2][4]) const {
    Tile::keys(k_tile, lane, [&](int step, const uint32_t(&b)[4]) {
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        Half<Math>::mma(s[m][0], q[m][step], b[0], b[1]);
        Half<Math>::mma(s[m][1], q[m][step], b[2], b[3]);
      }
    });

    // Only tiles at the edges of what the queries may see need masks.
    const int first_query = c.seq_len - c.num_queries;
    if (kExtras != Extras::kScores && token0 + kWarpTokens <= first_query + 1 && p.line_shape.window <= 0) {
      const float scale = score_scale() * kLog2e;
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 8; ++i) s[m][i / 4][i % 4] *= scale;
      }
      return;
    }
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = m * 16 + half * 8 + lane / 4;
        const int query_pos = first_query + row / p.group;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& x = s[m][i / 2][half * 2 + i % 2];
          x = score(c, x, row, query_pos, token0 + Tile::token(i, lane));
        }
      }
    }
  }

  // o += P V
  __device__ void accumulate(uint32_t v_tile, const uint32_t (&a)[kRowTiles][4]) {
    Tile::values(v_tile, lane, [&](int pair, const uint32_t(&b)[4]) {
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        Half<Math>::mma(o[m][pair * 2], a[m], b[0], b[1]);
        Half<Math>::mma(o[m][pair * 2 + 1], a[m], b[2], b[3]);
      }
    });
  }

  // Online softmax over 16 keys: s becomes P, packed as the A operand of the second product.
  __device__ void softmax(int m, float (&s)[2][4], uint32_t (&a)[4]) {
    float scale[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = fmaxf(fmaxf(s[0][half * 2], s[0][half * 2 + 1]),
                        fmaxf(s[1][half * 2], s[1][half * 2 + 1]));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      const float old = row_max[m][half];
      const float now = fmaxf(old, top);
      row_max[m][half] = now;
      // A row that has seen no key yet keeps max = -inf; exp2(-inf - -inf) must not become NaN.
      const float base = now == -INFINITY ? 0.f : now;
      scale[half] = exp2f(old - base);
      float sum = 0.f;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[n][half * 2 + e];
          x = exp2f(x - base);
          sum += x;
        }
      }
      row_sum[m][half] = row_sum[m][half] * scale[half] + sum;  // lanes of a row add up at the end
    }
    if (__any_sync(~0u, scale[0] != 1.f || scale[1] != 1.f)) {
#pragma unroll
      for (int n = 0; n < kSteps * 2; ++n) {
        o[m][n][0] *= scale[0];
        o[m][n][1] *= scale[0];
        o[m][n][2] *= scale[1];
        o[m][n][3] *= scale[1];
      }
    }
    a[0] = Half<Math>::pack(s[0][0], s[0][1]);
    a[1] = Half<Math>::pack(s[0][2], s[0][3]);
    a[2] = Half<Math>::pack(s[1][0], s[1][1]);
    a[3] = Half<Math>::pack(s[1][2], s[1][3]);
  }

  // Adds the four warps' results up in shared memory, then writes the item or its partial result.
  __device__ void close_item(const Cursor& c, int item_begin, int item_end, int begin, int span) {
    const int rows = c.num_queries * p.group;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum = row_sum[m][half];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (lane % 4 == 0) {
          const int r = m * 16 + half * 8 + lane / 4;
          sm.max[warp][r] = row_max[m][half];
          sm.sum[warp][r] = sum;
        }
      }
    }
    __syncthreads();
    float factor[kRowTiles][2];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = m * 16 + half * 8 + lane / 4;
        float top = -INFINITY;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) top = fmaxf(top, sm.max[w][r]);
        factor[m][half] = top == -INFINITY ? 0.f : exp2f(row_max[m][half] - top);
      }
    }
    if (threadIdx.x < rows) sm.stats[threadIdx.x] = row_stats(threadIdx.x);
    // In turn t, warp w adds its part of quarter (w + t) % 4 of the columns: all four work at once.
#pragma unroll 1
    for (int turn = 0; turn < kWarps; ++turn) {
      add_to_shared(rows, factor, (warp + turn) % kWarps, turn == 0);
      __syncthreads();
    }
    const bool whole = item_begin >= begin && item_end <= begin + span;
    if (whole) {
      if (threadIdx.x < rows) finish_stats(c, threadIdx.x, sm.stats[threadIdx.x]);
      __syncthreads();
      write_rows(c, rows);
    } else {
      write_partial(c, rows, item_begin, item_end, begin, span);
    }
    __syncthreads();  // the shared buffers are free again
  }

  __device__ void add_to_shared(int rows, const float (&factor)[kRowTiles][2], int quarter,
                                bool fresh) {
    static_assert(kSteps * 2 % kWarps == 0);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = m * 16 + half * 8 + lane / 4;
        if (r >= rows) continue;
        Tile::add(sm.out, r, o[m], half, factor[m][half], quarter, fresh, lane);
      }
    }
  }

  // Max and sum over the four warps, both in the exp2 domain.
  __device__ float2 row_stats(int r) const {
    float top = -INFINITY, sum = 0.f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, sm.max[w][r]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (sm.max[w][r] != -INFINITY) sum += sm.sum[w][r] * exp2f(sm.max[w][r] - top);
    }
    return make_float2(top, sum);
  }

  // The place of a row's results for shared keys.
  __device__ int64_t shared_row(const Cursor& c, int r, int split) const {
    const int head = head_of(c) * p.group + r % p.group;
    return (static_cast<int64_t>(split) * p.shared_batch + c.seq) * p.num_kv_items * p.group + head;
  }

  // Leaves the overall max and the reciprocal of the overall sum of row r in sm.max/sum[0][r].
  __device__ void finish_stats(const Cursor& c, int r, float2 stats) {
    if constexpr (kExtras == Extras::kShared) {
      const int splits = p.shared_splits[c.seq];
      for (int split = 0; split < splits; ++split) {
        const float2 other = p.shared_stats[shared_row(c, r, split)];
        const float top = fmaxf(stats.x, other.x);  // every row has seen a key: never -inf
        stats = {top, stats.y * exp2f(stats.x - top) + other.y * exp2f(other.x - top)};
      }
    }
    sm.max[0][r] = stats.x == -INFINITY ? 0.f : stats.x;
    float whole = 1.f;
    if constexpr (Tile::kFp8) whole = p.v_scale[kv_head(c)];
    sm.sum[0][r] = stats.y > 0.f ? whole / stats.y : 0.f;
  }

  static __device__ float4 scaled(float4 x, float f) {
    return make_float4(x.x * f, x.y * f, x.z * f, x.w * f);
  }

  // x: columns [d, d + 4) of row r, relative to its overall max. finish_stats must have run.
  __device__ void store(const Cursor& c, int r, int d, float4 x) {
    if constexpr (kExtras == Extras::kShared) {
      const int splits = p.shared_splits[c.seq];
      for (int split = 0; split < splits; ++split) {
        const int64_t row = shared_row(c, r, split);
        const float f = exp2f(p.shared_stats[row].x - sm.max[0][r]);
        const float4 y = *reinterpret_cast<const float4*>(p.shared_out + row * D + d);
        x = make_float4(x.x + y.x * f, x.y + y.y * f, x.z + y.z * f, x.w + y.w * f);
      }
    }
    const float inverse = sm.sum[0][r];
    T* dst = static_cast<T*>(p.out) +
             static_cast<int64_t>(c.query_start + r / p.group) * p.out_stride +
             static_cast<int64_t>(head_of(c) * p.group + r % p.group) * D + d;
    uint2 packed = {Half<T>::pack(x.x * inverse, x.y * inverse),
                    Half<T>::pack(x.z * inverse, x.w * inverse)};
    *reinterpret_cast<uint2*>(dst) = packed;
  }

  __device__ void write_rows(const Cursor& c, int rows) {
    for (int i = threadIdx.x; i < rows * (D / 4); i += kThreads) {
      const int r = i / (D / 4), d = i % (D / 4) * 4;
      float4 x = *reinterpret_cast<float4*>(&sm.out[r * D + d]);
      if constexpr (kExtras == Extras::kShared) x = scaled(x, exp2f(sm.stats[r].x - sm.max[0][r]));
      store(c, r, d, x);
    }
  }

  // Slot 1 of a CTA holds an item that starts in its span, slot 0 one that started before it.
  __device__ int partial_index(int span_index, int slot) const {
    return (span_index * p.columns + static_cast<int>(blockIdx.x) % p.columns) * 2 + slot;
  }
  __device__ float* partial_out(int span_index, int slot) const {
    return p.partial_out +
           static_cast<int64_t>(partial_index(span_index, slot)) * kMaxDecodeRows * D;
  }
  __device__ float2* partial_stats(int span_index, int slot) const {
    return p.partial_stats + partial_index(span_index, slot) * kMaxDecodeRows;
  }

  __device__ void write_partial(const Cursor& c, int rows, int item_begin, int item_end, int begin,
                                int span) {
    const int slot = item_begin >= begin ? 1 : 0;
    const int mine = blockIdx.x / p.columns;
    float* out = partial_out(mine, slot);
    float2* stats = partial_stats(mine, slot);
    for (int i = threadIdx.x; i < rows * (D / 4); i += kThreads) {
      reinterpret_cast<float4*>(out)[i] = reinterpret_cast<float4*>(sm.out)[i];
    }
    for (int r = threadIdx.x; r < rows; r += kThreads) stats[r] = sm.stats[r];

    const int first = item_begin / span, last = (item_end - 1) / span;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      int* arrivals = &p.arrivals[c.seq * p.num_kv_items + head_of(c)];
      const int before = atomicAdd(arrivals, 1);
      sm.last = before == last - first;
      if (sm.last) *arrivals = 0;  // ready for the next launch
    }
    __syncthreads();
    if (!sm.last) return;
    __threadfence();
    merge(c, rows, first, last);
  }

  // The partial results sit in L2, and one CTA must pull them in fast: a thread adds up one float4
  // column at a time with kUnroll loads in flight.
  __device__ void merge(const Cursor& c, int rows, int first, int last) {
    merge_stats(c, rows, first, last);
    const int items = rows * (D / 4);
    for (int base = 0; base < items; base += kThreads) {
      if (last - first < 4) {
        merge_items<4>(c, items, first, last, base);
      } else {
        merge_items<16>(c, items, first, last, base);
      }
    }
  }

  __device__ void merge_stats(const Cursor& c, int rows, int first, int last) {
    for (int r = warp; r < rows; r += kWarps) {
      float top = -INFINITY, sum = 0.f;
      for (int i = first + lane; i <= last; i += 32) {
        const float2 stats = __ldcg(&partial_stats(i, i == first)[r]);
        const float now = fmaxf(top, stats.x);
        if (now == -INFINITY) continue;
        sum = sum * exp2f(top - now) + stats.y * exp2f(stats.x - now);
        top = now;
      }
      float all = top;
#pragma unroll
      for (int d = 16; d > 0; d /= 2) all = fmaxf(all, __shfl_xor_sync(~0u, all, d));
      sum = top == -INFINITY ? 0.f : sum * exp2f(top - all);
#pragma unroll
      for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
      if (lane == 0) finish_stats(c, r, make_float2(all, sum));
    }
    __syncthreads();
  }

  template <int kUnroll>
  __device__ void merge_items(const Cursor& c, int items, int first, int last, int base) {
    const int own = base + threadIdx.x;
    const int i = min(own, items - 1), r = i / (D / 4);
    const float top = sm.max[0][r];
    float4 x = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 1
    for (int base_span = first; base_span <= last; base_span += kUnroll) {
      float4 y[kUnroll];
      float f[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int from = min(base_span + u, last), slot = from == first;
        y[u] = __ldcg(reinterpret_cast<float4*>(partial_out(from, slot)) + i);
        f[u] = __ldcg(&partial_stats(from, slot)[r].x);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const float w = base_span + u <= last ? exp2f(f[u] - top) : 0.f;
        x.x += y[u].x * w;
        x.y += y[u].y * w;
        x.z += y[u].z * w;
        x.w += y[u].w * w;
      }
    }
    if (own < items) store(c, r, i % (D / 4) * 4, x);
  }
};

}  // namespace sluice
