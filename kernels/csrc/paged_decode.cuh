// Interface of paged_decode.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

namespace sluice {

constexpr int kDecodeTile = 64;      // KV tokens of one unit of work
constexpr int kMaxDecodeRows = 32;   // query tokens x query heads per KV head in one pass

struct DecodeParams {
  void* out;             // [num_tokens, num_q_heads, D], rows out_stride elements apart
  const void* q;         // [num_tokens, num_q_heads, D], rows q_stride elements apart
  const void* k_cache;   // [num_blocks, block_size, num_kv_heads, D]
  const void* v_cache;
  const int* block_table;  // [batch, block_table_stride]
  const int* seq_lens;     // [batch], the query tokens included; 0 = padding
  const int* cu_queries;   // [batch + 1], prefix sums of query tokens
  const int* tile_ends;    // [batch], from decode_schedule
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
  int min_span;    // tiles a CTA takes at least
  int window;      // keys a query sees at most, itself included; 0 = all
  float scale;
  float soft_cap;  // 0 = none
};

cudaError_t decode_schedule(int* tile_ends, const int* seq_lens, const int* cu_queries, int batch,
                            int window, cudaStream_t stream);

// max_rows = largest number of query tokens of a sequence times params.group, at most
// kMaxDecodeRows (16 for head_dim 256). head_dim is 64, 96, 128 or 256.
cudaError_t paged_decode(const DecodeParams& params, bool bf16, int head_dim, int max_rows,
                         int num_ctas, cudaStream_t stream);

}  // namespace sluice
