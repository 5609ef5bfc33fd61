// The line of work of the decode kernel: how tiles follow each other, how a place on it is found.
#pragma once

#include "attention/paged_decode.cuh"

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

// Lines that must be written back before keys can take their place are better written back at once
// than a few at a time during the whole kernel, which reads meanwhile. Of few keys most fit beside
// them. Where nothing needs to be written back, what the layer will use soon is pushed out for
// nothing, which is little beside the keys of long sequences (PERFORMANCE.md).
constexpr int kManyKeys = 96 * 1024;  // of all sequences
constexpr int kLongSequence = 1024;   // keys, on average
constexpr int kDisplacingTiles = 12;  // of a CTA: by all CTAs of an H200, 104 MB
__device__ inline bool displaces(const DecodeSchedule& s, int tiles) {
  const int keys = tiles * kDecodeTile;
  return keys >= kManyKeys && (s.dirty_l2 || keys / s.batch >= kLongSequence);
}

// tiles: of all sequences, for one head; longest: of one.
__device__ inline DecodeLine line_of(const DecodeSchedule& s, int tiles, int longest,
                                     int num_spans) {
  DecodeLine line = {};
  line.total = tiles * s.shape.num_heads;
  const auto span_for = [&](int spans) {
    return max(s.min_span, (line.total + spans - 1) / spans);
  };
  line.span = span_for(num_spans);
  if (line.span <= kFewTiles) line.span = span_for(s.few_spans);
  const int part = (longest + s.cluster.value - 1) / s.cluster.value;
  const int parts = s.batch * s.shape.num_heads * s.cluster.value;
  line.clustered = s.cluster.value > 1 && parts <= num_spans && part <= line.span + s.slack;
  line.displacing = displaces(s, tiles) ? kDisplacingTiles : 0;
  return line;
}

// The first tile of part `rank` of an item; the last parts of a short one are empty.
__device__ __forceinline__ int part_begin(int num_tiles, int rank, const Divisor& cluster) {
  return num_tiles < cluster.value ? min(rank, num_tiles) : quotient(num_tiles * rank, cluster);
}

// Looks up the blocks of the first of so many tiles.
__device__ inline void look_up(const DecodeSchedule& s, DecodeStart& start, int tiles) {
  Cursor at = start.cursor;
  for (int tile = 0; tile < kEarlyTiles && tile < tiles; ++tile) {
    if (tile > 0) advance(s.shape, at);
    for (int i = 0; i < 4; ++i) {
      const int token = (at.first_tile + at.tile) * kDecodeTile + i * 16;
      start.blocks[tile * 4 + i] = block_of(s.table, at, token);
    }
  }
}

// The part that CTA `index` of a column works on; without tiles if there is no such item.
__device__ inline DecodeStart start_of_part(const DecodeSchedule& s, int index) {
  const int item = quotient(index, s.cluster), rank = index - item * s.cluster.value;
  DecodeStart start = {};
  Cursor& c = start.cursor;
  c.seq = item / s.shape.num_heads;
  c.head = item % s.shape.num_heads;
  if (c.seq >= s.batch) return start;
  open_sequence(s.shape, c);
  c.tile = part_begin(c.num_tiles, rank, s.cluster);
  look_up(s, start, part_begin(c.num_tiles, rank + 1, s.cluster) - c.tile);
  return start;
}

// The place `index` on the line. tile_ends must be complete.
__device__ inline DecodeStart start_of_span(const DecodeSchedule& s, const DecodeLine& line,
                                            int index) {
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
  look_up(s, start, min(line.span, line.total - index));
  return start;
}

// Where CTA `index` of a column starts; of those past the line's end nothing is known.
__device__ inline DecodeStart start_of(const DecodeSchedule& s, const DecodeLine& line,
                                       int index) {
  if (line.clustered) return start_of_part(s, index);
  const int first = index * line.span;
  return first < line.total ? start_of_span(s, line, first) : DecodeStart{};
}

}  // namespace sluice
