// Interface of paged_decode.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

namespace sluice {

constexpr int kDecodeTile = 64;      // KV tokens of one unit of work
constexpr int kMaxDecodeRows = 32;   // query tokens x query heads per KV head in one pass

// One tile on the line of all tiles of a step, with what is known of its sequence.
struct alignas(16) DecodeCursor {
  int seq;
  int head;       // a KV head, or a part of its query group
  int tile;       // counted from first_tile
  int num_tiles;  // of the sequence, for one head
  int seq_len;
  int first_tile;  // tiles before it lie outside every query's window
  int query_start;
  int num_queries;
};

struct DecodeLine {
  int total;  // tiles on the line
  int span;   // tiles per CTA
};

struct DecodeSchedule {
  DecodeLine* line;      // [1], written
  DecodeCursor* starts;  // [num_ctas], written
  int* tile_ends;        // [batch], scratch
  const int* seq_lens;   // as in DecodeParams
  const int* cu_queries;
  int batch;
  int num_heads;
  int min_span;  // tiles a CTA takes at least
  int window;
};

struct DecodeParams {
  void* out;             // [num_tokens, num_q_heads, D], rows out_stride elements apart
  const void* q;         // [num_tokens, num_q_heads, D], rows q_stride elements apart
  const void* k_cache;   // [num_blocks, block_size, num_kv_heads, D]
  const void* v_cache;
  const int* block_table;  // [batch, block_table_stride]
  const int* seq_lens;     // [batch], the query tokens included; 0 = padding
  const int* cu_queries;   // [batch + 1], prefix sums of query tokens
  const DecodeLine* line;      // from decode_schedule
  const DecodeCursor* starts;  // from decode_schedule
  const float* alibi_slopes;  // [num_q_heads] or null
  float* partial_out;      // [num_ctas, 2, kMaxDecodeRows, D]
  float2* partial_stats;   // [num_ctas, 2, kMaxDecodeRows]: max and sum, base 2
  int* arrivals;           // [batch * num_heads], zero before the first launch and after each
  int64_t q_stride, out_stride, block_stride, token_stride;  // in elements
  int block_table_stride;
  int batch;
  int num_heads;   // work items per sequence: num_kv_heads * parts
  int parts;       // into how many items the query group of a KV head is cut
  int group;       // query heads per item
  int block_size;  // a multiple of 16
  int window;      // keys a query sees at most, itself included; 0 = all
  float scale;
  float soft_cap;  // 0 = none
};

cudaError_t decode_schedule(const DecodeSchedule& schedule, int num_ctas, cudaStream_t stream);

// Needs decode_schedule with the same lengths, heads, window and num_ctas before it on the stream.
// max_rows = largest number of query tokens of a sequence times params.group, at most
// kMaxDecodeRows (16 for head_dim 256). head_dim is 64, 96, 128 or 256.
cudaError_t paged_decode(const DecodeParams& params, bool bf16, int head_dim, int max_rows,
                         int num_ctas, cudaStream_t stream);

}  // namespace sluice
