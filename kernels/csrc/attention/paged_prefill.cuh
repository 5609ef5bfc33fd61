// Interface of paged_prefill.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

#include "common/arguments.h"
#include "common/divisor.cuh"

namespace sluice {

constexpr int kPrefillRows = 128;  // query tokens x query heads per KV head in one tile

// A shared prefix seen by up to kPrefillRows rows: members of one group of sequences.
struct alignas(16) SharedTile {
  int first_member;
  int num_members;  // at most kPrefillRows / group
  int begin, end;   // keys [begin, end), multiples of 64
};

struct PrefillParams {
  // Rows begin at multiples of 16 bytes.
  void* out;      // [num_tokens, num_q_heads, D], rows out_stride elements apart
  const void* q;  // likewise, q_stride
  const void* k_cache;  // [num_blocks, block_size, num_kv_heads, D]
  const void* v_cache;
  const int* seq_lens;     // [batch], the query tokens included
  const int* cu_queries;   // [batch + 1]
  const int* block_table;  // [batch, table_stride]
  const int2* tiles;       // [num_tiles] of (sequence, tile)
  int64_t q_stride, out_stride;  // in elements
  int64_t num_blocks;
  int table_stride;
  Divisor block;  // tokens of a block of the cache, in units of 16
  int num_tiles;
  int num_kv_heads;
  Divisor group;  // query heads per KV head
  int window;  // keys a query sees at most, itself included; 0 = all
  float scale;
  float soft_cap;  // 0 = none
  const float* sinks;  // [num_q_heads] or null

  // Only for shared prefixes, where nothing is masked and partial results are left.
  const SharedTile* shared;   // [num_shared]
  const int* num_shared;      // [1]
  const int* members;         // sequences, those of a group in a row
  const int* splits;          // [num_shared]: which of a sequence's partial results a tile makes
  float* partial_out;         // [splits, batch, num_q_heads, D], not divided by the sum
  float2* partial_stats;      // [splits, batch, num_q_heads]: max and sum, base 2
  int batch;
};

// Causal attention of any number of query tokens, of the sequences in the tiles. Other sequences'
// tokens are left untouched, nothing past a sequence's end is read.
struct PrefillArguments {
  ARGUMENTS(PrefillArguments);
  IN(void*, out, "H[num_tokens, num_q_heads, head_dim] rows");  // written
  IN(const void*, q, "H[num_tokens, num_q_heads, head_dim] rows");
  IN(const void*, k_cache, "H[num_blocks, block_size, num_kv_heads, head_dim]");
  IN(const void*, v_cache, "H[num_blocks, block_size, num_kv_heads, head_dim]");
  IN(const int*, block_table, "[>=batch, _] rows");
  IN(const int*, seq_lens, "[batch]");  // the query tokens included
  IN(const int*, cu_queries, "[batch + 1]");
  IN(const int*, tiles, "[num_tiles, 2]");  // of kernels/tiles.py, of kPrefillRows rows
  ARG(float, scale);
  ARG_OR(int, window, 0);      // keys a query sees at most, itself included; 0 = all
  ARG_OR(float, soft_cap, 0);  // 0 = none
  OPTIONAL(const float*, sinks, "[num_q_heads]");  // a score of each head that has no value
  DIM(int, num_q_heads);
  DIM(int, num_kv_heads);
  DIM(int, head_dim);
  DIM(int, block_size);
  DIM(int, batch);
  DIM(int, num_tiles);
  DIM(int64_t, num_blocks);
  STRIDE(int, table_stride, block_table, 0);
  STRIDE(int64_t, q_stride, q, 0);
  STRIDE(int64_t, out_stride, out, 0);
};

// The first part of a decode step: the query tokens (one each) of sequences that share keys attend to
// these, into partial results.
struct SharedPrefixArguments {
  ARGUMENTS(SharedPrefixArguments);
  IN(float*, shared_out, "[shared_rows, num_q_heads, head_dim]");  // written
  IN(float*, shared_stats, "[shared_rows, num_q_heads, 2]");       // written
  IN(const void*, q, "H[num_tokens, num_q_heads, head_dim] rows");
  IN(const void*, k_cache, "H[num_blocks, block_size, num_kv_heads, head_dim]");
  IN(const void*, v_cache, "H[num_blocks, block_size, num_kv_heads, head_dim]");
  IN(const int*, block_table, "[>=batch, _] rows");
  IN(const int*, seq_lens, "[batch]");
  IN(const int*, cu_queries, "[batch + 1]");
  // Of each the first member, how many, and the keys [begin, end).
  IN(const int*, tiles, "[max_tiles, 4] 16");
  IN(const int*, tile_splits, "[max_tiles]");  // which of its members' partial results a tile makes
  IN(const int*, num_tiles, "[1]");
  IN(const int*, members, "[_]");  // sequences, those of a group in a row
  ARG(float, scale);
  DIM(int, num_q_heads);
  DIM(int, num_kv_heads);
  DIM(int, head_dim);
  DIM(int, block_size);
  DIM(int, batch);
  DIM(int64_t, num_blocks);
  STRIDE(int, table_stride, block_table, 0);
  STRIDE(int64_t, q_stride, q, 0);
};

// Causal attention of the sequences in `tiles`. head_dim is 64, 128 or 256; sm_90 only.
cudaError_t paged_prefill(const PrefillParams& params, bool bf16, int head_dim,
                          cudaStream_t stream);

// Attention of the members' query tokens (one each) to the keys they share, into the partial
// results. head_dim is 64 or 128.
cudaError_t shared_prefix(const PrefillParams& params, bool bf16, int head_dim,
                          cudaStream_t stream);

}  // namespace sluice
