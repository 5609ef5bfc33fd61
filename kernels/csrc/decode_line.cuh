// The line of work of the decode kernel: how tiles follow each other, how a place on it is found.
#pragma once

#include "paged_decode.cuh"

namespace sluice {

using Cursor = DecodeCursor;

__device__ __forceinline__ int first_tile(int seq_len, int num_queries, int window) {
  if (window <= 0) return 0;
  const int oldest = seq_len - num_queries - window + 1;  // first key the first query may see
  return oldest > 0 ? oldest / kDecodeTile : 0;
}

__device__ __forceinline__ void open_sequence(const DecodeLineShape& shape, Cursor& c) {
  c.seq_len = shape.seq_lens[c.seq];
  c.query_start = shape.cu_queries[c.seq];
  c.num_queries = shape.cu_queries[c.seq + 1] - c.query_start;
  c.first_tile = shape.skipped ? shape.skipped[c.seq] / kDecodeTile
                               : first_tile(c.seq_len, c.num_queries, shape.window);
  const int tiles = (c.seq_len + kDecodeTile - 1) / kDecodeTile;
  c.num_tiles = c.num_queries > 0 ? tiles - c.first_tile : 0;
}

// The next tile on the line. Only called while there is one.
__device__ __forceinline__ void advance(const DecodeLineShape& shape, Cursor& c) {
  if (++c.tile < c.num_tiles) return;
  c.tile = 0;
  if (++c.head < shape.num_heads) return;
  c.head = 0;
  do {  // padding rows have no tiles
    ++c.seq;
    open_sequence(shape, c);
  } while (c.num_tiles == 0);
}

// The cache block that holds a token; 0 past the end. Blocks hold a multiple of 16 tokens, so 16
// aligned tokens lie in one block.
__device__ __forceinline__ int block_of(const DecodeTable& table, const Cursor& c, int token) {
  if (token >= c.seq_len) return 0;
  const int64_t row = static_cast<int64_t>(c.seq) * table.stride;
  return table.blocks[row + quotient(token / 16, table.block)];
}

// The place `index` on the line. tile_ends must be complete.
__device__ inline DecodeStart start_of(const DecodeSchedule& s, int index, int span, int total) {
  int lo = 0, hi = s.batch - 1;  // the first sequence whose tiles end beyond index
  while (lo < hi) {
    const int mid = (lo + hi) / 2;
    if (s.tile_ends[mid] * s.shape.num_heads > index) {
      hi = mid;
    } else {
      lo = mid + 1;
    }
  }
  DecodeStart start = {};
  Cursor& c = start.cursor;
  c.seq = lo;
  open_sequence(s.shape, c);
  const int local = index - (lo == 0 ? 0 : s.tile_ends[lo - 1]) * s.shape.num_heads;
  c.head = local / c.num_tiles;
  c.tile = local % c.num_tiles;

  Cursor at = c;
  for (int tile = 0; tile < kEarlyTiles && tile < span && index + tile < total; ++tile) {
    if (tile > 0) advance(s.shape, at);
    for (int i = 0; i < 4; ++i) {
      const int token = (at.first_tile + at.tile) * kDecodeTile + i * 16;
      start.blocks[tile * 4 + i] = block_of(s.table, at, token);
    }
  }
  return start;
}

}  // namespace sluice
