// Attention of a few query tokens per sequence (decode, speculative verification) over a paged KV
// cache: split-KV in the manner of stream-K, grouped query heads packed into columns of the MMA.
//
// Work. The KV of a sequence and a KV head is cut into tiles of 64 tokens. All tiles form one line
// (decode_line.cuh), which is dealt out in equal spans, so that the SMs finish together whatever
// the lengths are. A span is worked on by `columns` CTAs side by side, one for each of as many
// neighbouring heads: together they read whole tokens, 2 KB in a row, which DRAM likes best. An
// item (sequence, head) that lies within one span is written directly. Of one that is cut by span
// borders each CTA hands over what it has made (max, sum, unnormalised output) by way of the L2
// (exchange.cuh), and the one with the last keys merges that when it has done its own work. It
// waits for earlier CTAs only, so nobody waits in a circle. The line and where each span starts are
// computed on the device once per step and shared by all layers, so the launch has a fixed shape,
// can live in a CUDA graph, and begins with one load instead of a search.
//
// A CTA has four warps; warp w owns tokens [16w, 16w+16) of every tile, and loads them itself into
// its own ring of shared-memory stages, so the main loop has no block-wide barrier. The ring runs
// across item borders: while one item is finished, the tiles of the next are already in flight.
//
// Products. Keys and values are the A operand, 16 rows high, the queries of an item the columns:
// S^T = K Q^T, O^T = V^T P^T. Eight columns hold the query heads of most models, where rows would
// be padded to sixteen; that halves the products and the registers of the output.
//
// Few sequences of like lengths have no line: each item is cut into as many parts as a cluster has
// CTAs, and these hand each other their results.
//
// New keys. With Extras::kNew no kernel has rotated and stored them before this one, which begins
// while their projection still runs: it fills its ring with what lies in the cache, in the places
// of the new keys, too, waits, and puts these there and into the cache.
//
// Order. What an SM loads arrives in the order in which it asks, so what a warp must wait for comes
// after all keys that are in flight. Queries are therefore asked for together with the first keys
// of their item, into the same stage (into registers the warp would wait for them before it asks
// for more keys), and cache blocks for 32 tiles at once, one a lane: where there is room for that.
// Keys leave the L2 first: nobody else reads them, and what they replace would be read again. Where
// that is rather written back, the first tiles of a CTA do not (decode_line.cuh).
//
// Code. In a model the kernel comes cold into the instruction caches for every layer, and with few
// keys that is most of its time: every instruction counts once, whether it is in a loop or not. So
// there is one place that loads, one that multiplies and one that merges.
//
// Rows of an item: row r = query token r / group, query head r % group of the KV head.

#pragma once

#include "attention/decode_memory.cuh"
#include "attention/decode_parts.cuh"
#include "attention/decode_rope.cuh"
#include "attention/decode_tile.cuh"
#include "common/cluster.cuh"
#include "common/dependent_launch.cuh"
#include "common/exchange.cuh"
#include "common/hopper.cuh"
#include "common/mma.cuh"

namespace sluice {

// T: of queries and output; Tile: how the cache is stored (decode_tile.cuh).
template <typename T, typename Tile, int D, int kRowTiles, int kStages, Extras kExtras>
class DecodeAttention {
  using Stored = typename Tile::Stored;
  using Math = typename Tile::Math;
  static constexpr int kPieceElems = 16 / sizeof(Stored);
  static constexpr int kPieces = D / kPieceElems;  // 16-byte pieces of a row
  static constexpr int kSteps = D / 16;            // MMA steps along the head dimension
  static constexpr int kLoads = kWarpTokens * kPieces / 32;  // per lane, for K and for V
  static constexpr unsigned kQuads = D / 4;                  // float4s of a row
  // Whether there are registers for what is asked for ahead of time.
  static constexpr bool kRoom = !Tile::kFp8 && kRowTiles < 4;
  static constexpr bool kNew = kExtras == Extras::kNew;
  // Whether the first keys may stay in the L2 as usual: the choice alone costs FP8 3 %.
  static constexpr bool kChoice = !Tile::kFp8;
  static constexpr bool kClusters =
      kHasClusters && kRowTiles * kTileRows <= kMaxClusterRows &&
      (kExtras == Extras::kNone || kNew);
  // Whether queries come by way of shared memory. With kNew they are turned first, and what can be
  // loaded before the wait comes before them.
  static constexpr bool kStaged = kRoom && !kNew;
  static constexpr bool kEarlyQueries = Tile::kFp8 && kRowTiles == 1;
  static constexpr int kQueryBytes = kStaged ? kRowTiles * kTileRows * D * 2 : 0;
  static constexpr int kStageBytes = 2 * Tile::kBytes + kQueryBytes;

 public:
  using Memory = Shared<D, kStageBytes, kStages>;

  __device__ DecodeAttention(const DecodeParams& params, Memory& shared)
      : p(params),
        sm(shared),
        partials{reinterpret_cast<float4*>(p.partial_out), p.partial_stats},
        warp(threadIdx.x / 32),
        lane(threadIdx.x % 32) {
    policy = evict_first_policy();
    ring = static_cast<uint32_t>(__cvta_generic_to_shared(&sm.ring[warp][0][0]));
  }

  __device__ void run() {
    const DecodeStart& start = p.starts[blockIdx.y];
    // Nothing but the newest tokens and the queries comes from the kernel right before.
    if (p.wait_first) wait_for_inputs();
    Cursor load = start.cursor;
    const int early = start.blocks[lane % kEarlyTiles * kWarps + warp];
    const DecodeLine line = *p.line;
    const int span = line.span;
    int begin = blockIdx.y * span, end = min(begin + span, line.total);
    clustered = kClusters && line.clustered;
    if (clustered) {
      begin = load.tile;
      end = part_begin(load.num_tiles, rank() + 1, p.cluster);
    }
    if (clustered ? load.num_tiles == 0 : begin >= end) {
      wait_for_inputs();  // a kernel must not end before the one before it
      return;
    }
    if (clustered) {
      if (num_parts(load) > 1) shared_item(load).expect();
    } else if (threadIdx.x == 0) {
      sm.first = load;
    }
    block_seq = -1;

    // Tile i is computed while i + kStages is loaded; the first rounds only load.
    int stage = 0;
#pragma unroll 1
    for (int i = begin - kStages; i < end; ++i) {
      const int ahead = i + kStages;
      int block = 0;
      if (ahead < end) {
        const int nth = ahead - begin;
        if (kRoom && end - begin > kEarlyTiles) look_up_blocks(load);
        if (nth < kEarlyTiles) {
          block = __shfl_sync(~0u, early, nth);
        } else if constexpr (kRoom) {
          block = __shfl_sync(~0u, blocks, load.tile % 32);
        } else {
          block = block_of(p.table, load, token0(load));
        }
      }
      Cursor work;
      if (i >= begin) {
        __syncwarp();  // one lane wrote it
        work = sm.tiles[warp][stage];
        const bool opens = i == begin || work.tile == 0;
        if (!kStaged && opens && !(kEarlyQueries && i == begin)) load_queries(work);
        if constexpr (kNew) take_in_new(work, stage);
        if (opens) open_item(stage);
        consume(work, stage);
      }
      if (ahead < end) {
        const bool displaces = kChoice && ahead - begin < line.displacing;
        refill(load, block, stage, displaces ? kUsualPolicy : policy);
        if (kStaged && (ahead == begin || load.tile == 0)) ask_for_queries(load, stage);
        if (kEarlyQueries && ahead == begin) load_queries(load);
        if (ahead + 1 < end) advance(p.line_shape, load);
      }
      cp_async_commit();  // an empty group counts too
      if (i >= begin && (i + 1 == end || work.tile + 1 == work.num_tiles)) {
        close_item(work, i, begin, end);
      }
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    if (clustered) {
      merge_parts(load, begin == end);
    } else {
      merge_spans(begin, end, span);
    }
  }

 private:
  const DecodeParams& p;
  Memory& sm;
  const Partials<kQuads> partials;
  const int warp, lane;
  uint32_t ring;
  uint64_t policy;
  uint32_t q[kRowTiles][kSteps][2];
  RowTurn<T, Tile, D> turns[kNew ? kRowTiles : 1];  // of the rows of q
  float o[kRowTiles][kSteps][4];
  float row_max[kRowTiles][2];  // of rows lane % 4 * 2 and the next, times log2(e)
  float row_sum[kRowTiles][2];  // likewise, over this lane's keys
  float key_scale, value_scale;  // of the item, in FP8
  int blocks;                    // of tile block_tile + lane of the sequence block_seq
  int block_seq, block_tile;
  bool clustered;  // the CTA works on a part of one item, those of its cluster on the others

  __device__ int token0(const Cursor& c) const {
    return (c.first_tile + c.tile) * kTile + warp * kWarpTokens;
  }

  __device__ int head_of(const Cursor& c) const {
    return c.head * p.columns + static_cast<int>(blockIdx.x);
  }

  __device__ int kv_head(const Cursor& c) const { return quotient(head_of(c), p.parts); }

  // The cache blocks of the sequence's tiles around c, if they are not known.
  __device__ void look_up_blocks(const Cursor& c) {
    const int tile = c.tile / 32 * 32;
    if (c.seq == block_seq && tile == block_tile) return;
    block_seq = c.seq;
    block_tile = tile;
    blocks = block_of(p.table, c, token0(c) + (tile + lane - c.tile) * kTile);
  }

  // Where row r begins in the queries or the output.
  __device__ int64_t row_at(const Cursor& c, int r, int64_t stride) const {
    const int query = quotient(r, p.group), head = r - query * p.group.value;
    return (c.query_start + query) * stride + (head_of(c) * p.group.value + head) * D;
  }

  // Starts the copies of this warp's tokens of the tile at c into a stage, as one group. Past the
  // sequence's end may be NaN: zeros instead.
  __device__ void refill(const Cursor& c, int block, int stage, uint64_t kept) {
    const int at = token0(c), tokens = c.seq_len - at;
    if (lane == 0) sm.tiles[warp][stage] = c;
    // There are new ones. With kNew, what is loaded in their place will be written over.
    if (!kNew && tokens - c.num_queries < kWarpTokens) wait_for_inputs();
    if (tokens <= 0) return;
    const int row = lane / kPieces, piece = lane % kPieces;
    const int64_t from = static_cast<int64_t>(block) * p.block_stride +
                         (remainder(at / 16, p.table.block) * 16 + row) * p.token_stride +
                         kv_head(c) * D + piece * kPieceElems;
    const Stored* k = static_cast<const Stored*>(p.k_cache) + from;
    const Stored* v = static_cast<const Stored*>(p.v_cache) + from;
    const uint32_t to = ring + stage * kStageBytes;
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      if constexpr (32 % kPieces == 0) {
        constexpr int kRows = 32 / kPieces;
        const uint32_t dst = Tile::further(to + Tile::place(row, piece), j * kRows);
        cp_async_16(dst, k, row + j * kRows < tokens, kept);
        cp_async_16(dst + Tile::kBytes, v, row + j * kRows < tokens, kept);
        k += kRows * p.token_stride;
        v += kRows * p.token_stride;
      } else {
        const int to_row = (j * 32 + lane) / kPieces, to_piece = (j * 32 + lane) % kPieces;
        const uint32_t dst = to + Tile::place(to_row, to_piece);
        const int64_t further =
            (to_row - row) * p.token_stride + (to_piece - piece) * kPieceElems;
        cp_async_16(dst, k + further, to_row < tokens, kept);
        cp_async_16(dst + Tile::kBytes, v + further, to_row < tokens, kept);
      }
    }
  }

  // Starts the copies of an item's queries beside its first keys here, in the same group.
  __device__ void ask_for_queries(const Cursor& c, int stage) {
    wait_for_inputs();
    const int last_row = c.num_queries * p.group.value - 1;
    const uint32_t to = ring + stage * kStageBytes + 2 * Tile::kBytes;
#pragma unroll
    for (int j = 0; j < kRowTiles * kTileRows * kPieces / 32; ++j) {
      const int row = (j * 32 + lane) / kPieces, piece = (j * 32 + lane) % kPieces;
      // Columns of the products have nothing to do with each other: beyond the last row are copies.
      const T* from = static_cast<const T*>(p.q) + row_at(c, min(row, last_row), p.q_stride);
      cp_async_16(to + Tile::place(row, piece), from + piece * kPieceElems, true);
    }
  }

  __device__ void load_queries(const Cursor& c) {
    wait_for_inputs();
    if constexpr (Tile::kFp8) {
      key_scale = p.k_scale[kv_head(c)];
      value_scale = p.v_scale[kv_head(c)];
    }
    const int last_row = c.num_queries * p.group.value - 1;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      // Columns of the products have nothing to do with each other: beyond the last row are copies.
      const int r = min(m * kTileRows + lane / 4, last_row);
      const T* src = static_cast<const T*>(p.q) + row_at(c, r, p.q_stride) +
                     Tile::query_dim(0, 0, lane);
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int high = 0; high < 2; ++high) {
          // Lanes add to the dim, whatever the step.
          const auto* pair = reinterpret_cast<const uint32_t*>(src + Tile::query_dim(s, high, 0));
          q[m][s][high] = Tile::query(*pair);
        }
      }
      if constexpr (kNew) {
        const int position = c.seq_len - c.num_queries + quotient(r, p.group);
        turns[m].load(p.cos_sin + static_cast<int64_t>(position) * D, lane);
      }
    }
  }

  // Of the tile at c in a stage, this warp's new keys and values: to their place there, and to the
  // cache.
  __device__ void take_in_new(const Cursor& c, int stage) {
    constexpr int kPairs = kPieces / 2;
    const int at = token0(c), oldest = c.seq_len - c.num_queries;
    const int first = max(oldest - at, 0), num = min(c.seq_len - at, kWarpTokens) - first;
    if (num <= 0) return;
    wait_for_stage();  // what came in their place would be written over them
    const uint32_t tile = ring + stage * kStageBytes;
    const int64_t slot = static_cast<int64_t>(block_of(p.table, c, at)) * p.block_stride +
                         remainder(at / 16, p.table.block) * 16 * p.token_stride;
#pragma unroll 1
    for (int i = lane; i < num * kPairs; i += 32) {
      const int row = first + i / kPairs, piece = i % kPairs, dim = piece * kPieceElems;
      const int64_t from = (c.query_start + at + row - oldest) * p.q_stride + kv_head(c) * D + dim;
      const int64_t to = slot + row * p.token_stride + kv_head(c) * D + dim;
      const T* k = static_cast<const T*>(p.new_k) + from;
      const T* v = static_cast<const T*>(p.new_v) + from;
      T *to_k = static_cast<T*>(p.k_cache) + to, *to_v = static_cast<T*>(p.v_cache) + to;
      const float* cos = p.cos_sin + static_cast<int64_t>(at + row) * D + dim;
      NewPiece<T, Tile, D>{k, v, to_k, to_v, cos, tile + Tile::place(row, piece),
                           tile + Tile::place(row, piece + kPairs)}
          .take_in();
    }
    __syncwarp();
  }

  // Returns when the oldest of kStages groups has arrived, for the whole warp.
  static __device__ void wait_for_stage() {
    cp_async_wait<kStages - 1>();
    __syncwarp();
  }

  __device__ void open_item(int stage) {
    const uint32_t from = ring + stage * kStageBytes + 2 * Tile::kBytes;
    if constexpr (kStaged) wait_for_stage();
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int s = 0; kStaged && s < kSteps; s += 2) {
        uint32_t of_two[4];
        ldmatrix_x4(of_two, from + Tile::place(m * kTileRows + lane % 8, s * 2 + lane / 8));
        q[m][s][0] = of_two[0], q[m][s][1] = of_two[1];
        q[m][s + 1][0] = of_two[2], q[m][s + 1][1] = of_two[3];
      }
      if constexpr (kNew) turns[m].apply(q[m]);
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int e = 0; e < 4; ++e) o[m][s][e] = 0.f;
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        row_max[m][e] = -INFINITY;
        row_sum[m][e] = 0.f;
      }
    }
  }

  // What the products of queries and keys are multiplied with to be scores.
  __device__ float score_scale() const {
    if constexpr (Tile::kFp8) return p.scale * key_scale;
    return p.scale;
  }

  __device__ void consume(const Cursor& c, int stage) {
    const uint32_t k_tile = ring + stage * kStageBytes;
    wait_for_stage();
    if (token0(c) < c.seq_len) {
      uint32_t weights[kRowTiles][2];
      float s[kRowTiles][4];
      scores(k_tile, s);
      mask(c, s);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) softmax(m, s[m], weights[m]);
      Tile::values(k_tile + Tile::kBytes, lane, [&](int tile, const uint32_t(&a)[4]) {
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          Half<Math>::mma(o[m][tile], a, weights[m][0], weights[m][1]);
        }
      });
    }
    __syncwarp();  // the stage may be refilled
  }

  // s = K Q^T of this warp's 16 keys: keys lane / 4 (+ 8) by rows lane % 4 * 2 (+ 1).
  __device__ void scores(uint32_t k_tile, float (&s)[kRowTiles][4]) const {
    constexpr int kChains = kRowTiles == 1 ? 2 : 1;  // a product waits for the one it adds to
    float sum[kChains][kRowTiles][4] = {};
    Tile::keys(k_tile, lane, [&](int step, const uint32_t(&a)[4]) {
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        Half<Math>::mma(sum[step % kChains][m], a, q[m][step][0], q[m][step][1]);
      }
    });
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[m][i] = kChains == 2 ? sum[0][m][i] + sum[kChains - 1][m][i] : sum[0][m][i];
      }
    }
  }

  // Hides what a query may not see; only tiles at the edges need it. With a soft cap or ALiBi also
  // makes scores of the products.
  __device__ void mask(const Cursor& c, float (&s)[kRowTiles][4]) const {
    const int oldest_query = c.seq_len - c.num_queries - token0(c);  // seen from the first token
    const int window = p.line_shape.window;
    if (kExtras != Extras::kScores && kWarpTokens <= oldest_query + 1 && window <= 0) return;
    const unsigned reach = window > 0 ? window : 0x7fffffff;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int row = m * kTileRows + lane % 4 * 2 + e;
        const int query = quotient(row, p.group);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& x = s[m][half * 2 + e];
          const int age = oldest_query + query - Tile::token(half, lane);
          if constexpr (kExtras == Extras::kScores) {
            x *= score_scale();
            if (p.soft_cap > 0.f) x = p.soft_cap * tanhf(x / p.soft_cap);
            if (p.alibi_slopes) {
              const int head = row - query * p.group.value;
              x -= p.alibi_slopes[head_of(c) * p.group.value + head] * age;
            }
          }
          if (static_cast<unsigned>(age) >= reach) x = -INFINITY;
        }
      }
    }
  }

  // Online softmax: s becomes the weights of 16 keys, as the B operand of the second product.
  __device__ void softmax(int m, float (&s)[4], uint32_t (&weights)[2]) {
    const float factor = kExtras == Extras::kScores ? kLog2e : score_scale() * kLog2e;
    float scale[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float top = fmaxf(s[e], s[e + 2]);
#pragma unroll
      for (int d = 4; d < 32; d *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
      const float old = row_max[m][e];
      row_max[m][e] = fmaxf(old, top * factor);
      const float base = exponent_base(row_max[m][e]);
      scale[e] = exp2f(old - base);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& x = s[half * 2 + e];
        x = exp2f(fmaf(x, factor, -base));
      }
      row_sum[m][e] = row_sum[m][e] * scale[e] + (s[e] + s[e + 2]);
    }
    if (__any_sync(~0u, scale[0] != 1.f || scale[1] != 1.f)) {
#pragma unroll
      for (int n = 0; n < kSteps; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[m][n][i] *= scale[i % 2];
      }
    }
    weights[0] = transposed(Half<Math>::pack(s[0], s[1]));
    weights[1] = transposed(Half<Math>::pack(s[2], s[3]));
  }

  // i: the tile of the line that was the item's last one here. Adds the four warps' results up in
  // shared memory, eight rows at a time or, where all tiles are done, as many as their ring holds,
  // and writes the item or its partial result.
  __device__ void close_item(const Cursor& c, int i, int begin, int end) {
    constexpr int kHeld = sizeof(sm.ring[0]) / sizeof(sm.out[0]) * kTileRows;
    const int item_begin = i - c.tile, item_end = item_begin + c.num_tiles;
    const bool whole = item_begin >= begin && i + 1 == item_end, is_last = i + 1 == end;
    const int partial = partial_row(blockIdx.y, item_begin >= begin, 0);
    const int rows = c.num_queries * p.group.value, step = is_last ? kHeld : kTileRows;
#pragma unroll 1
    for (int first_row = 0; first_row < rows; first_row += step) {
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {  // registers cannot be indexed
        const int row = m * kTileRows - first_row;
        if (row >= 0 && row < step) leave_rows(m, rows, left(is_last, warp, row));
      }
      __syncthreads();
      if (clustered && !whole && first_row == 0) wait_for_cluster();
#pragma unroll 1
      for (unsigned j = threadIdx.x; j < min(rows - first_row, step) * kQuads; j += kThreads) {
        const int r = j / kQuads, d = j % kQuads * 4;
        float2 stats[kWarps];
        float4 x[kWarps];
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
          const float* row = left(is_last, w, r);
          stats[w] = *reinterpret_cast<const float2*>(&row[D]);
          x[w] = *reinterpret_cast<const float4*>(&row[d]);
        }
        Part part;
        part.add(stats, x);
        if (whole) {
          store(c, first_row + r, d, part);
        } else if (clustered) {
          shared_item(c).hand_over(first_row * kQuads + j, part);
        } else {
          partials.hand_over(partial + first_row, j, part);
        }
      }
      __syncthreads();  // the shared memory is free again
    }
  }

  // This warp's results for the rows of tile m, to shared memory.
  __device__ void leave_rows(int m, int rows, float* to) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float sum = row_sum[m][e];
#pragma unroll
      for (int d = 4; d < 32; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
      const int r = lane % 4 * 2 + e;
      if (m * kTileRows + r >= rows) continue;
      float* row = to + r * Memory::kStride;
      Tile::put(row, o[m], e, lane);
      if (lane < 4) *reinterpret_cast<float2*>(&row[D]) = make_float2(row_max[m][e], sum);
    }
  }

  // Where a warp leaves a row for the CTA: in its ring once all tiles are done. In a cluster others
  // send to Shared::out then.
  __device__ float* left(bool in_ring, int of_warp, int r) {
    static_assert(sizeof(sm.out) <= sizeof(sm.ring));
    float* rows = in_ring ? reinterpret_cast<float*>(sm.ring[of_warp]) : &sm.out[of_warp][0][0];
    return rows + r * Memory::kStride;
  }

  // Where row r of a partial result lies: slot 1 of a CTA holds an item that starts in its span,
  // slot 0 one that started before it.
  __device__ int partial_row(int span_index, bool starts_here, int r) const {
    const int slot = (span_index * p.columns + static_cast<int>(blockIdx.x)) * 2 + starts_here;
    return slot * kMaxDecodeRows + r;
  }
  // The CTA with an item's last keys waits for what those before it have made of theirs, and merges
  // all in the order of the spans: after its own other work, which others may wait for.
  __device__ void merge_spans(int begin, int end, int span) {
    const Cursor c = sm.first;
    const int item_begin = begin - c.tile;
    if (c.tile == 0 || item_begin + c.num_tiles > end) return;
    const int last = blockIdx.y, num = last - item_begin / span + 1;
    const int rows = c.num_queries * p.group.value;
    if constexpr (Tile::kFp8) value_scale = p.v_scale[kv_head(c)];  // it was the last item's
    const auto part_at = [&](int i) { return partial_row(last - (num - 1 - i), i == 0, 0); };
    partials.template merge<kRoom && kRowTiles == 2 ? 4 : 1>(
        num, rows * kQuads, part_at,
        [&](unsigned j, const Part& part) { store(c, j / kQuads, j % kQuads * 4, part); });
  }

  // Place of this CTA in its cluster.
  __device__ int rank() const { return remainder(blockIdx.y, p.cluster); }
  // Parts of an item that have tiles; a single one is not handed over.
  __device__ int num_parts(const Cursor& c) const { return min(c.num_tiles, p.cluster.value); }

  __device__ auto shared_item(const Cursor& c) {
    constexpr int kMaxQuads = (kRowTiles == 1 ? kTileRows : kMaxClusterRows) * kQuads;
    static_assert(sizeof(Handed<kMaxQuads>) <= sizeof(sm.out));
    const int quads = c.num_queries * p.group.value * static_cast<int>(kQuads);
    auto& handed = reinterpret_cast<Handed<kMaxQuads>&>(sm.out);
    return SharedItem<kMaxQuads>(handed, sm.results, rank(), p.cluster, quads, num_parts(c));
  }

  // is_empty: this CTA had no tiles.
  __device__ void merge_parts(const Cursor& c, bool is_empty) {
    if (is_empty) {
      wait_for_inputs();
      if constexpr (Tile::kFp8) value_scale = p.v_scale[kv_head(c)];
    }
    if (num_parts(c) == 1) return;
    if (is_empty) wait_for_cluster();
    shared_item(c).merge([&](unsigned j, const Part& part) {
      store(c, j / kQuads, j % kQuads * 4, part);
    });
  }

  // part: columns [d, d + 4) of row r, over all keys but the shared ones.
  __device__ void store(const Cursor& c, int r, int d, Part part) {
    const int head = head_of(c) * p.group.value + remainder(r, p.group);
    if constexpr (kExtras == Extras::kShared) {
      const int heads = p.num_kv_items * p.group.value;
      const int splits = p.shared_splits[c.seq];
#pragma unroll 1
      for (int split = 0; split < splits; ++split) {
        const int64_t row = (static_cast<int64_t>(split) * p.shared_batch + c.seq) * heads + head;
        const float2 stats[1] = {p.shared_stats[row]};
        const float4 x[1] = {*reinterpret_cast<const float4*>(p.shared_out + row * D + d)};
        part.add(stats, x);
      }
    }
    if (p.sinks) part.sum += sink_weight(p.sinks[head], part.max);
    float f = part.sum > 0.f ? 1.f / part.sum : 0.f;
    if constexpr (Tile::kFp8) f *= value_scale;
    const uint2 packed = {Half<T>::pack(part.x.x * f, part.x.y * f),
                          Half<T>::pack(part.x.z * f, part.x.w * f)};
    *reinterpret_cast<uint2*>(static_cast<T*>(p.out) + row_at(c, r, p.out_stride) + d) = packed;
  }
};

}  // namespace sluice
