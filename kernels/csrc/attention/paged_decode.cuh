// Interface of paged_decode.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

#include "common/arguments.h"
#include "common/divisor.cuh"

namespace sluice {

constexpr int kDecodeTile = 64;      // KV tokens of one unit of work
constexpr int kEarlyTiles = 4;       // tiles whose blocks a span starts with
constexpr int kMaxDecodeRows = 32;   // query tokens x query heads per KV head in one pass
constexpr int kStatsQuads = 8;       // float4s of a partial result that share a max and a sum

// One tile on the line of all tiles of a step, with what is known of its sequence.
struct alignas(16) DecodeCursor {
  int seq;
  int head;       // counted in steps of `columns` heads
  int tile;       // counted from first_tile
  int num_tiles;  // of the sequence, for one head
  int seq_len;
  int first_tile;  // tiles before it lie outside every query's window
  int query_start;
  int num_queries;
};

// Where a span starts, and the cache blocks of its first tiles, 16 tokens each: a CTA need not look
// them up before it can load anything.
struct alignas(16) DecodeStart {
  DecodeCursor cursor;
  int blocks[kEarlyTiles * kDecodeTile / 16];
};

struct alignas(16) DecodeLine {
  int total;  // tiles on the line
  int span;   // tiles per span
  int clustered;  // 1: the CTAs of a cluster share an item (decode_line.cuh), in place of spans
  // The first tiles of each CTA that are loaded with the usual L2 policy, which displaces what the
  // L2 holds. Later tiles are marked to be evicted first, so they displace only each other.
  int displacing;
};
constexpr int kMaxCluster = 16;
constexpr int kFewTiles = 16;  // of a span: up to that, merging counts
constexpr int kMaxClusterRows = 16;  // of an item that a cluster shares

struct DecodeLineShape {
  const int* seq_lens;    // [batch], the query tokens included; 0 = padding
  const int* cu_queries;  // [batch + 1], prefix sums of query tokens
  int num_heads;          // items per sequence on the line: num_kv_items / columns
  int window;             // keys a query sees at most, itself included; 0 = all
  const int* skipped;     // [batch]: leading keys left to shared_prefix, in whole tiles; or null
};

struct DecodeTable {
  const int* blocks;  // [batch, stride]
  int stride;
  int block_size;  // a multiple of 16
  Divisor block;   // the same in units of 16
};

struct DecodeSchedule {
  DecodeLine* line;     // [1], written
  DecodeStart* starts;  // [num_spans], written
  int* tile_ends;       // [batch], scratch: running sums of tiles
  DecodeLineShape shape;
  DecodeTable table;
  int batch;
  int min_span;  // tiles a span has at least
  Divisor cluster;  // CTAs of a cluster, a divisor of num_spans; 1 = none
  int slack;        // tiles by which a part may be longer than a span
  int few_spans;    // how many are used while that leaves each of all at most kFewTiles
  bool wait_first;  // the kernel right before made what is read here
  bool dirty_l2;  // kernels before leave the L2 full of what they have written
};

struct DecodeParams {
  void* out;             // [num_tokens, num_q_heads, D], rows out_stride elements apart
  const void* q;         // [num_tokens, num_q_heads, D], rows q_stride elements apart
  void* k_cache;         // [num_blocks, block_size, num_kv_heads, D]; of q's type or e4m3
  void* v_cache;
  const DecodeLine* line;     // from decode_schedule
  const DecodeStart* starts;  // from decode_schedule
  DecodeLineShape line_shape;  // as it was for decode_schedule
  DecodeTable table;           // likewise
  const float* alibi_slopes;   // [num_q_heads] or null
  const float* sinks;          // [num_q_heads] or null
  // Empty (exchange.cuh) before the first launch and after each:
  float* partial_out;      // [num_spans * columns, 2, kMaxDecodeRows, D]
  // Max and sum, base 2, once for the threads that read them at the same time.
  float2* partial_stats;   // [num_spans * columns, 2, kMaxDecodeRows, D / (4 * kStatsQuads)]
  // What shared_prefix left for the skipped keys; null with line_shape.skipped.
  const float* shared_out;      // [splits, shared_batch, num_q_heads, D]
  const float2* shared_stats;   // [splits, shared_batch, num_q_heads]
  const int* shared_splits;     // [batch]: how many results there are of each sequence
  int shared_batch;
  int64_t q_stride, out_stride, block_stride, token_stride;  // in elements
  int num_kv_items;  // per sequence: num_kv_heads * parts
  int columns;       // heads worked on side by side; divides num_kv_items
  Divisor parts;     // into how many items the query group of a KV head is cut
  Divisor group;     // query heads per item
  float scale;       // positive
  float soft_cap;   // 0 = none
  Divisor cluster;  // as it was for decode_schedule; with more than 1, max_rows is at most 16
  bool wait_first;  // the kernel right before made the schedule
  const float* k_scale;  // [num_kv_heads], what an e4m3 cache is multiplied with; else null
  const float* v_scale;
  // The new keys and values, [num_tokens, num_kv_heads, D], rows q_stride elements apart, if they
  // are not in the cache yet: they are stored there, and the keys and queries rotated, as by
  // rope_and_cache.
  const void* new_k;  // else null
  const void* new_v;
  const float* cos_sin;  // [max_positions, D]: cosines, then sines
};

// Deals out the work of a step; once per step and kind of layer, shared by all its layers.
struct ScheduleArguments {
  ARGUMENTS(ScheduleArguments);
  IN(int*, schedule, "[num_ctas + 1, 24]");  // written: the line, and where each span starts
  IN(int*, tile_ends, "[>=batch]");          // scratch
  IN(const int*, seq_lens, "[batch]");       // the step's query tokens included; 0 = padding
  IN(const int*, cu_queries, "[batch + 1]");  // prefix sums of the query tokens
  IN(const int*, block_table, "[>=batch, _] rows");  // the one that paged_decode will get
  ARG(int, block_size);
  ARG(int, num_q_heads);
  ARG(int, num_kv_heads);
  ARG(int, head_dim);
  ARG_OR(int, max_queries, 1);  // the most query tokens of a sequence
  ARG_OR(int, min_span, 1);     // KV tiles (of 64 tokens) that a CTA takes at least
  ARG_OR(int, window, 0);       // keys a query sees at most, itself included; 0 = all
  OPTIONAL(const int*, skipped, "[>=batch]");  // leading keys that shared_prefix attends to
  // Where lengths are alike, the CTAs that share a sequence and group of heads may merge their
  // results without memory: pairs where these fill the GPU, more where the GPU has room for twice as
  // many; on Hopper, up to 16 rows (queries times query heads per KV head).
  ARG_OR(bool, clusters, false);
  // Else it may begin before the operation right before it has ended; that one then must make
  // nothing that it reads.
  ARG_OR(bool, wait_first, true);
  // What was written before attention fills the L2, as beside a prompt's chunk of 2,048 tokens. Many
  // keys push it out at once, those of long sequences always; others keep out of the way of what is
  // there.
  ARG_OR(bool, dirty_l2, false);
  DIM(int, num_ctas);
  DIM(int, batch);
  STRIDE(int, table_stride, block_table, 0);
};

// Causal attention of the last max_queries tokens at most of each sequence. decode_schedule must have
// run with the same lengths, heads, max_queries, window, skipped and clusters. Rows of padding
// sequences are left untouched.
struct DecodeArguments {
  ARGUMENTS(DecodeArguments);
  IN(void*, out, "H[num_tokens, num_q_heads, head_dim] rows");  // written
  IN(const void*, q, "H[num_tokens, num_q_heads, head_dim] rows");
  IN(void*, k_cache, "H|e4m3[_, block_size, num_kv_heads, head_dim]");
  IN(void*, v_cache, "k_cache[_, block_size, num_kv_heads, head_dim]");
  IN(const int*, block_table, "[>=batch, _] rows");
  IN(const int*, seq_lens, "[batch]");
  IN(const int*, cu_queries, "[batch + 1]");
  IN(const int*, schedule, "[num_ctas + 1, 24]");
  // Empty (exchange.cuh) before the first launch and after each; head_dim / 32 pairs of max and sum.
  IN(float*, partial_out, "[num_ctas, 2, 32, head_dim]");
  IN(float*, partial_stats, "[num_ctas, 2, 32, head_dim/32, 2]");
  ARG(float, scale);            // of scores, positive
  ARG_OR(int, max_queries, 1);  // max_queries * num_q_heads / num_kv_heads is at most 32
  ARG_OR(int, window, 0);       // keys a query sees at most, itself included; 0 = all
  ARG_OR(float, soft_cap, 0);   // 0 = none
  OPTIONAL(const float*, alibi_slopes, "[num_q_heads]");
  OPTIONAL(const float*, sinks, "[num_q_heads]");  // a score of each head that has no value
  // What shared_prefix left for the skipped keys: without a window, a soft cap, slopes or FP8.
  OPTIONAL(const int*, skipped, "[>=batch]");  // leading keys, in whole tiles
  OPTIONAL(const int*, splits, "[>=batch]");   // how many results there are of each sequence
  OPTIONAL(const float*, shared_out, "[shared_rows, num_q_heads, head_dim]");
  OPTIONAL(const float*, shared_stats, "[shared_rows, num_q_heads, 2]");
  // Else it may begin before the operation right before it has ended; that one then must make
  // nothing but the queries and the step's own keys and values.
  ARG_OR(bool, wait_first, true);
  OPTIONAL(const float*, k_scale, "[num_kv_heads]");  // what an e4m3 cache is multiplied with
  OPTIONAL(const float*, v_scale, "[num_kv_heads]");
  // The step's own keys and values where they are not in the cache yet. They and q are views of one
  // fused projection, and it does what rope_and_cache would have done before, but leaves q as it is:
  // the tokens of a sequence stand at positions 0, 1, 2 and so on. Without FP8, skipped, soft_cap and
  // slopes.
  OPTIONAL(const void*, new_k, "H[num_tokens, num_kv_heads, head_dim] rows16");
  OPTIONAL(const void*, new_v, "H[num_tokens, num_kv_heads, head_dim] rows16");
  OPTIONAL(const float*, cos_sin, "[_, head_dim]");
  ARG_OR(bool, clusters, false);  // without skipped, soft_cap and slopes
  DIM(int, num_q_heads);
  DIM(int, num_kv_heads);
  DIM(int, head_dim);
  DIM(int, block_size);
  DIM(int, num_ctas);
  DIM(int, batch);
  STRIDE(int, table_stride, block_table, 0);
  STRIDE(int64_t, q_stride, q, 0);
  STRIDE(int64_t, out_stride, out, 0);
};

// Unless wait_first, it may begin before the kernel right before it on the stream has ended, but
// does not end before that.
cudaError_t decode_schedule(const DecodeSchedule& schedule, int num_spans, cudaStream_t stream);

// May begin before the kernel right before it on the stream has ended, and read all but the step's
// own tokens (dependent_launch.cuh): their keys, values and queries may come from that kernel,
// older keys and values, lengths, tables and the schedule (unless wait_first) must not.
// Needs decode_schedule with the same lengths, heads, window and spans before it on the stream.
// num_ctas = spans * columns.
// max_rows = largest number of query tokens of a sequence times params.group, at most
// kMaxDecodeRows (16 for head_dim 256). head_dim is 64, 96, 128 or 256.
cudaError_t paged_decode(const DecodeParams& params, bool bf16, int head_dim, int max_rows,
                         int num_ctas, cudaStream_t stream);

// The same for a cache in FP8, without shared keys; paged_decode goes there by itself.
cudaError_t paged_decode_fp8(const DecodeParams& params, bool bf16, int head_dim, int max_rows,
                             int num_ctas, cudaStream_t stream);

}  // namespace sluice
