// Attention of one sequence over its blocks of the paged cache.

#pragma once

#include <vector>

#include "cpu/cache.h"
#include "cpu/rows.h"

extern "C" {

// The sequences of a step; field for field the struct of kernels/cpu.py.
struct AttentionStep {
  const int32_t* block_table;  // [rows, table_stride]
  const int64_t* rows;         // [num_sequences]: the sequence's row in the block table
  const int64_t* first_token;  // [num_sequences]: the sequence's first query
  const int64_t* query_lens;   // [num_sequences]
  const int64_t* seq_lens;     // [num_sequences], queries included
  int64_t num_sequences;
  int64_t table_stride;
};
}

namespace {

struct AttentionShape {
  int64_t num_q_heads, num_kv_heads, head_dim, block_size;
  int64_t q_stride;  // elements between the queries of two tokens
  float scale;
  int64_t window;  // keys a query sees, its own included; 0: all
  float softcap;   // scores become softcap * tanh(score / softcap); 0: as they are
  const float* sinks = nullptr;  // [num_q_heads]: a score without a value; null: none
};

// A query token and a query head.
struct Row {
  const float* query;
  float* scores;           // of all keys of the sequence, then their weights
  float* sums;             // [2, row_width]: of weighted values
  float* out;
  int64_t first, visible;  // it sees the keys from first on, before visible
  const float* sink;       // see AttentionShape; null: none
};

constexpr int row_width(int dim) { return dim > 0 ? dim : kMaxHeadDim; }

// The rows of a sequence, and what they need: their scores, each row starting on a vector and with
// room for the last block's to overshoot; then their sums; then a block of a cache in FP8.
struct AttentionMemory {
  std::vector<Row> rows;
  float* block;

  void reserve(int64_t num_rows, int64_t num_scores, int64_t width, int64_t block_floats) {
    const int64_t score_vectors = num_scores / kLanes + 2, sum_vectors = 2 * width / kLanes;
    vectors.resize(num_rows * (score_vectors + sum_vectors) + (block_floats + kLanes - 1) / kLanes);
    rows.resize(num_rows);
    Vector* const sums = vectors.data() + num_rows * score_vectors;
    std::fill(sums, sums + num_rows * sum_vectors, Vector{});
    for (int64_t row = 0; row < num_rows; ++row) {
      rows[row].scores = reinterpret_cast<float*>(vectors.data() + row * score_vectors);
      rows[row].sums = reinterpret_cast<float*>(sums + row * sum_vectors);
    }
    block = reinterpret_cast<float*>(sums + num_rows * sum_vectors);
  }

 private:
  std::vector<Vector> vectors;
};

// The rows and keys whose products are summed at once: so many sums stay in registers, and each
// load serves several of them.
constexpr int kRowsAtOnce = kLanes == 16 ? 4 : 2;
constexpr int kKeysAtOnce = 4;
constexpr int kMaxTurnedDim = 64;  // Turning keys of larger heads costs more than it saves.

// What is read once and used by several instructions: without this each of them reads it again.
inline Vector load_once(const float* x) {
  Vector v = load(x);
#if defined(__AVX512F__)
  asm("" : "+v"(v));
#elif defined(__AVX__)
  asm("" : "+x"(v));
#endif
  return v;
}

// With kCount = kLanes, lane i of the result is the sum of the lanes of parts[i]: a transpose by
// halves, adding on the way, at a third of the cost of as many separate reductions. It may be done
// in stages: the results for neighbouring parts are the parts of the next stage.
template <int kCount>
inline Vector sum_lanes(Vector* parts) {
  static constexpr Lanes kEven = SLUICE_EVEN, kOdd = SLUICE_ODD;
#pragma GCC unroll 4
  for (int count = kCount; count > 1; count /= 2)
#pragma GCC unroll 8
    for (int i = 0; i < count / 2; ++i)
      parts[i] = __builtin_shuffle(parts[2 * i], parts[2 * i + 1], kEven) +
                 __builtin_shuffle(parts[2 * i], parts[2 * i + 1], kOdd);
  return parts[0];
}

// scores[j] = scale * (query . keys[j]) for up to kLanes keys, summed alike however many they are.
// All kLanes scores are written.
template <int kDim, bool kFull>
inline void score_keys(float* scores, const float* query, const float* keys, int64_t count,
                       int64_t key_stride, float scale) {
  Vector parts[kLanes] = {};
#pragma GCC unroll 16
  for (int j = 0; j < kLanes; ++j) {
    if (!kFull && j >= count) break;
    Vector sum = {};
#pragma GCC unroll 16
    for (int d = 0; d < kDim; d += kLanes) sum += load(query + d) * load(keys + j * key_stride + d);
    parts[j] = sum;
  }
  store(scores, sum_lanes<kLanes>(parts) * scale);
}

// The same for kRowsAtOnce rows and kLanes keys, whose scores begin at `offset`; to the bit.
template <int kDim>
[[gnu::noinline]] void score_tile(const Row* rows, int64_t offset, const float* keys, int64_t key_stride,
                       float scale) {
  constexpr int kStages = kLanes / kKeysAtOnce;
  Vector sums[kRowsAtOnce][kStages];
  for (int stage = 0; stage < kStages; ++stage, keys += kKeysAtOnce * key_stride) {
    Vector parts[kRowsAtOnce][kKeysAtOnce] = {};
    for (int d = 0; d < kDim; d += kLanes) {
      Vector queries[kRowsAtOnce];
#pragma GCC unroll 4
      for (int r = 0; r < kRowsAtOnce; ++r) queries[r] = load_once(rows[r].query + d);
#pragma GCC unroll 4
      for (int j = 0; j < kKeysAtOnce; ++j) {
        const Vector key = load_once(keys + j * key_stride + d);
#pragma GCC unroll 4
        for (int r = 0; r < kRowsAtOnce; ++r) parts[r][j] += queries[r] * key;
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRowsAtOnce; ++r) sums[r][stage] = sum_lanes<kKeysAtOnce>(parts[r]);
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRowsAtOnce; ++r)
    store(rows[r].scores + offset, sum_lanes<kStages>(sums[r]) * scale);
}

// Lane j of columns[d] is dimension d of key j, of kLanes keys: a transpose by perfect shuffles.
template <int kDim>
inline void transpose_keys(Vector* columns, const float* keys, int64_t key_stride) {
  static constexpr Lanes kLow = SLUICE_LOW, kHigh = SLUICE_HIGH;
  for (int d = 0; d < kDim; d += kLanes) {
    Vector parts[2][kLanes];
#pragma GCC unroll 16
    for (int j = 0; j < kLanes; ++j) parts[0][j] = load(keys + j * key_stride + d);
    int from = 0;
#pragma GCC unroll 4
    for (int stage = kLanes; stage > 1; stage /= 2, from = 1 - from)
#pragma GCC unroll 8
      for (int i = 0; i < kLanes / 2; ++i) {
        const Vector first = parts[from][i], second = parts[from][i + kLanes / 2];
        parts[1 - from][2 * i] = __builtin_shuffle(first, second, kLow);
        parts[1 - from][2 * i + 1] = __builtin_shuffle(first, second, kHigh);
      }
#pragma GCC unroll 16
    for (int j = 0; j < kLanes; ++j) columns[d + j] = parts[from][j];
  }
}

struct RowSums {
  Vector of[kRowsAtOnce];
};

// The products of kCount lanes of score_keys' sums, added as sum_lanes adds them.
template <int kDim, int kLane, int kCount>
[[gnu::always_inline]] inline RowSums sum_columns(const float* const* queries,
                                                  const Vector* columns) {
  RowSums sums = {};
  if constexpr (kCount == 1) {
#pragma GCC unroll 4
    for (int d = kLane; d < kDim; d += kLanes)
#pragma GCC unroll 4
      for (int r = 0; r < kRowsAtOnce; ++r) sums.of[r] += queries[r][d] * columns[d];
  } else {
    const RowSums first = sum_columns<kDim, kLane, kCount / 2>(queries, columns);
    const RowSums second = sum_columns<kDim, kLane + kCount / 2, kCount / 2>(queries, columns);
#pragma GCC unroll 4
    for (int r = 0; r < kRowsAtOnce; ++r) sums.of[r] = first.of[r] + second.of[r];
  }
  return sums;
}

// score_tile for keys that transpose_keys has turned, which saves the sums over lanes; to the bit.
template <int kDim>
[[gnu::noinline]] void score_columns(const Row* rows, int64_t offset, const Vector* columns,
                                     float scale) {
  const float* queries[kRowsAtOnce];
  for (int r = 0; r < kRowsAtOnce; ++r) queries[r] = rows[r].query;
  const RowSums sums = sum_columns<kDim, 0, kLanes>(queries, columns);
  for (int r = 0; r < kRowsAtOnce; ++r) store(rows[r].scores + offset, sums.of[r] * scale);
}

// The same for a head_dim that is no multiple of kLanes.
inline void score_keys_slowly(float* scores, const float* query, const float* keys, int64_t count,
                              int64_t key_stride, int64_t dim, float scale) {
  for (int64_t j = 0; j < count; ++j) {
    float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
    for (int64_t d = 0; d < dim; ++d) dot += query[d] * keys[j * key_stride + d];
    scores[j] = dot * scale;
  }
}

// Turns scores into the weights of the values, in place. sink: see AttentionShape; null: none.
inline void softmax(float* scores, int64_t count, const float* sink) {
  float best = sink ? std::max(scores[0], *sink) : scores[0];
#pragma omp simd reduction(max : best)
  for (int64_t j = 0; j < count; ++j) best = std::max(best, scores[j]);
  float sum = sink ? exp_nonpositive(*sink - best) : 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < count; ++j) {
    scores[j] = exp_nonpositive(scores[j] - best);
    sum += scores[j];
  }
  const float scale = 1.0f / sum;
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) scores[j] *= scale;
}

// Scores of a block's keys.
template <int kDim>
inline void score_block(float* scores, const float* query, const float* keys, int64_t count,
                        int64_t stride, int64_t dim, float scale) {
  if constexpr (kDim == 0) {
    score_keys_slowly(scores, query, keys, count, stride, dim, scale);
    return;
  }
  for (int64_t j = 0; j < count; j += kLanes) {
    const float* some = keys + j * stride;
    if (count - j >= kLanes)
      score_keys<kDim, true>(scores + j, query, some, kLanes, stride, scale);
    else
      score_keys<kDim, false>(scores + j, query, some, count - j, stride, scale);
  }
}

// Turns a row's scores into weights.
void weigh(const Row& row, float softcap) {
  float* scores = row.scores + row.first;
  const int64_t count = row.visible - row.first;
  if (softcap > 0)
    for (int64_t j = 0; j < count; ++j) scores[j] = softcap * std::tanh(scores[j] / softcap);
  softmax(scores, count, row.sink);
}

// acc += weights[j] * values[j] over the keys of a block; even and odd keys apart, so that one sum
// need not wait for the other.
template <int kDim>
inline void add_values(float* acc, const float* weights, const float* values, int64_t count,
                       int64_t stride, int64_t dim) {
  float* odd_acc = acc + row_width(kDim);
  int64_t j = 0;
  for (; j + 1 < count; j += 2) {
    const float *even = values + j * stride, *odd = even + stride;
    const float even_weight = weights[j], odd_weight = weights[j + 1];
#pragma omp simd
    for (int64_t d = 0; d < dim; ++d) {
      acc[d] += even_weight * even[d];
      odd_acc[d] += odd_weight * odd[d];
    }
  }
  for (; j < count; ++j)
#pragma omp simd
    for (int64_t d = 0; d < dim; ++d) acc[d] += weights[j] * values[j * stride + d];
}

// The same for kRowsAtOnce rows, weight_stride apart, and an even number of keys; to the bit.
template <int kDim>
[[gnu::noinline]] void add_values_tile(float* sums, const float* weights, int64_t weight_stride,
                            const float* values, int64_t count, int64_t stride) {
  constexpr int kPart = kDim % (2 * kLanes) == 0 ? 2 : 1;  // vectors of a row summed at once
  for (int d = 0; d < kDim; d += kPart * kLanes) {
    Vector acc[kRowsAtOnce][2][kPart];
#pragma GCC unroll 4
    for (int r = 0; r < kRowsAtOnce; ++r)
#pragma GCC unroll 2
      for (int i = 0; i < kPart; ++i) {
        acc[r][0][i] = load(sums + 2 * r * kDim + d + i * kLanes);
        acc[r][1][i] = load(sums + (2 * r + 1) * kDim + d + i * kLanes);
      }
    const float* value = values + d;
    for (int64_t j = 0; j < count; j += 2)
#pragma GCC unroll 2
      for (int odd = 0; odd < 2; ++odd, value += stride) {
        Vector some[kPart];
#pragma GCC unroll 2
        for (int i = 0; i < kPart; ++i) some[i] = load_once(value + i * kLanes);
#pragma GCC unroll 4
        for (int r = 0; r < kRowsAtOnce; ++r) {
          const float weight = weights[r * weight_stride + j + odd];
#pragma GCC unroll 2
          for (int i = 0; i < kPart; ++i) acc[r][odd][i] += weight * some[i];
        }
      }
#pragma GCC unroll 4
    for (int r = 0; r < kRowsAtOnce; ++r)
#pragma GCC unroll 2
      for (int i = 0; i < kPart; ++i) {
        store(sums + 2 * r * kDim + d + i * kLanes, acc[r][0][i]);
        store(sums + (2 * r + 1) * kDim + d + i * kLanes, acc[r][1][i]);
      }
  }
}

// Some neighbouring keys, or their values, of one KV head.
struct Keys {
  const float* first;
  int64_t stride, number, count;  // number: of the first one in the sequence
};

// The scores of the rows of one KV head.
template <int kDim>
void score_rows(const Row* rows, int64_t num_rows, const Keys& keys, int64_t dim, float scale) {
  int64_t row = 0;
  if constexpr (kDim > 0 && kDim <= kMaxTurnedDim)
    if (keys.count % kLanes == 0 && num_rows >= 2 * kRowsAtOnce)
      for (int64_t j = 0; j < keys.count; j += kLanes) {
        Vector columns[kDim];
        transpose_keys<kDim>(columns, keys.first + j * keys.stride, keys.stride);
        for (row = 0; row + kRowsAtOnce <= num_rows; row += kRowsAtOnce)
          score_columns<kDim>(rows + row, keys.number + j, columns, scale);
      }
  if constexpr (kDim > 0)
    if (keys.count % kLanes == 0)
      for (; row + kRowsAtOnce <= num_rows; row += kRowsAtOnce)
        for (int64_t j = 0; j < keys.count; j += kLanes)
          score_tile<kDim>(rows + row, keys.number + j, keys.first + j * keys.stride, keys.stride,
                           scale);
  for (; row < num_rows; ++row)
    score_block<kDim>(rows[row].scores + keys.number, rows[row].query, keys.first, keys.count,
                      keys.stride, dim, scale);
}

// Adds to the sums of the rows of one KV head.
template <int kDim>
void add_values_of_rows(const Row* rows, int64_t num_rows, const Keys& keys, int64_t dim) {
  const auto sees_all = [&](const Row& row) {
    return row.first <= keys.number && row.visible >= keys.number + keys.count;
  };
  for (int64_t row = 0; row < num_rows;) {
    if constexpr (kDim > 0)
      if (keys.count % 2 == 0 && row + kRowsAtOnce <= num_rows && sees_all(rows[row]) &&
          sees_all(rows[row + kRowsAtOnce - 1])) {
        add_values_tile<kDim>(rows[row].sums, rows[row].scores + keys.number,
                              rows[row + 1].scores - rows[row].scores, keys.first, keys.count,
                              keys.stride);
        row += kRowsAtOnce;
        continue;
      }
    const Row& one = rows[row++];
    const int64_t skipped = std::max<int64_t>(0, one.first - keys.number);
    const int64_t count = std::min(keys.count, one.visible - keys.number) - skipped;
    add_values<kDim>(one.sums, one.scores + keys.number + skipped,
                     keys.first + skipped * keys.stride, count, keys.stride, dim);
  }
}

// One sequence and some of its KV heads, in memory that is used again. q and out start at the
// sequence's first token.
template <int kDim>
void attend(float* out, const float* q, const LayerCache& cache, const AttentionStep& step,
            const AttentionShape& shape, int64_t sequence, int64_t first_kv_head,
            int64_t num_kv_heads, AttentionMemory& memory) {
  const int64_t dim = kDim > 0 ? kDim : shape.head_dim;
  const int64_t group = shape.num_q_heads / shape.num_kv_heads;
  const int64_t query_len = step.query_lens[sequence], length = step.seq_lens[sequence];
  const int64_t rows_each = query_len * group;  // of each KV head
  const int64_t block_size = shape.block_size;
  const int64_t num_blocks = (length + block_size - 1) / block_size;
  const int32_t* table = step.block_table + step.rows[sequence] * step.table_stride;

  const auto reader = [&](const void* cells, const float* scales) {
    return BlockReader(cells, scales, block_size, shape.num_kv_heads, first_kv_head, num_kv_heads,
                       dim);
  };
  const BlockReader keys = reader(cache.keys, cache.key_scales);
  const BlockReader values = reader(cache.values, cache.value_scales);

  memory.reserve(rows_each * num_kv_heads, length + block_size, row_width(kDim),
                 cache.key_scales ? block_size * keys.stride() : 0);
  for (int64_t i = 0; i < rows_each * num_kv_heads; ++i) {
    Row& row = memory.rows[i];
    const int64_t token = i % rows_each / group;
    const int64_t head = (first_kv_head + i / rows_each) * group + i % group;
    row.query = q + token * shape.q_stride + head * dim;
    row.out = out + (token * shape.num_q_heads + head) * dim;
    row.visible = length - query_len + token + 1;
    row.first = shape.window > 0 ? std::max<int64_t>(0, row.visible - shape.window) : 0;
    row.sink = shape.sinks ? shape.sinks + head : nullptr;
  }

  // No row sees a key before the block of the first token's first key.
  const int64_t first_block = memory.rows[0].first / block_size;
  const auto for_blocks = [&](const BlockReader& from, auto visit) {
    for (int64_t i = first_block; i < num_blocks; ++i) {
      if (i + 1 < num_blocks) from.prefetch(table[i + 1]);
      const int64_t count = std::min(block_size, length - i * block_size);
      const float* block = from.block(table[i], count, memory.block);
      for (int64_t head = 0; head < num_kv_heads; ++head)
        visit(memory.rows.data() + head * rows_each,
              Keys{block + head * dim, from.stride(), i * block_size, count});
    }
  };
  for_blocks(keys, [&](const Row* rows, const Keys& some) {
    score_rows<kDim>(rows, rows_each, some, dim, shape.scale);
  });
  values.prefetch(table[first_block]);
  for (const Row& row : memory.rows) weigh(row, shape.softcap);
  for_blocks(values, [&](const Row* rows, const Keys& some) {
    add_values_of_rows<kDim>(rows, rows_each, some, dim);
  });
  for (const Row& row : memory.rows)
#pragma omp simd
    for (int64_t d = 0; d < dim; ++d) row.out[d] = row.sums[d] + row.sums[row_width(kDim) + d];
}

using Attend = void (*)(float*, const float*, const LayerCache&, const AttentionStep&,
                        const AttentionShape&, int64_t, int64_t, int64_t, AttentionMemory&);

Attend attend_for(int64_t head_dim) {
  switch (head_dim) {
    case 16: return attend<16>;
    case 32: return attend<32>;
    case 48: return attend<48>;
    case 64: return attend<64>;
    case 80: return attend<80>;
    case 96: return attend<96>;
    case 128: return attend<128>;
    case 256: return attend<256>;
    default: return attend<0>;
  }
}

// How the threads share out the attention of some sequences: by KV heads where they are few, or have
// several queries each, which may be pieces of one prompt. All that read a head's keys then follow
// each other, and find them in the cache. Else a sequence stays with one thread, which reads whole
// blocks.
struct AttentionParts {
  int64_t num_sequences, num_parts, num_heads, num_items;

  AttentionParts(const int64_t* query_lens, int64_t num_sequences, int64_t num_kv_heads,
                 int64_t num_threads)
      : num_sequences(num_sequences) {
    const bool is_split = num_sequences < 2 * num_threads ||
                          std::any_of(query_lens, query_lens + num_sequences,
                                      [](int64_t query_len) { return query_len > 1; });
    num_parts = is_split ? num_kv_heads : 1;
    num_heads = num_kv_heads / num_parts;
    num_items = num_sequences * num_parts;
  }
  int64_t sequence(int64_t item) const { return item % num_sequences; }
  int64_t first_head(int64_t item) const { return item / num_sequences * num_heads; }
};

}  // namespace
