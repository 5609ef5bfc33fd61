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

// Lane i of the result is the sum of the lanes of parts[i]: a transpose by halves, adding on the
// way, at a third of the cost of as many separate reductions.
inline Vector sum_lanes(Vector* parts) {
  static constexpr Lanes kEven = SLUICE_EVEN, kOdd = SLUICE_ODD;
  for (int count = kLanes; count > 1; count /= 2)
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
  store(scores, sum_lanes(parts) * scale);
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

// acc += weights[j] * values[j] over the keys of a block; even and odd keys apart, so that one sum
// need not wait for the other.
template <int kDim>
inline void add_values(float (*acc)[kDim > 0 ? kDim : kMaxHeadDim], const float* weights,
                       const float* values, int64_t count, int64_t stride, int64_t dim) {
  int64_t j = 0;
  for (; j + 1 < count; j += 2) {
    const float *even = values + j * stride, *odd = even + stride;
    const float even_weight = weights[j], odd_weight = weights[j + 1];
#pragma omp simd
    for (int64_t d = 0; d < dim; ++d) {
      acc[0][d] += even_weight * even[d];
      acc[1][d] += odd_weight * odd[d];
    }
  }
  for (; j < count; ++j)
#pragma omp simd
    for (int64_t d = 0; d < dim; ++d) acc[0][d] += weights[j] * values[j * stride + d];
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

// The rows' scores, each row starting on a vector and with room for the last block's to overshoot;
// then their sums; then a block of a cache in FP8.
template <int kWidth>
struct Scratch {
  Vector* scores;
  int64_t row_vectors;
  float *sums, *block;

  Scratch(std::vector<Vector>& memory, int64_t rows, int64_t row_floats, int64_t block_floats)
      : row_vectors(row_floats / kLanes + 2) {
    constexpr int64_t kSumVectors = 2 * kWidth / kLanes;
    memory.assign(rows * (row_vectors + kSumVectors) + (block_floats + kLanes - 1) / kLanes,
                  Vector{});
    scores = memory.data();
    sums = reinterpret_cast<float*>(scores + rows * row_vectors);
    block = sums + rows * 2 * kWidth;
  }
  float* scores_of(int64_t row) const {
    return reinterpret_cast<float*>(scores + row * row_vectors);
  }
  auto sums_of(int64_t row) const {
    return reinterpret_cast<float(*)[kWidth]>(sums + row * 2 * kWidth);
  }
};

// One sequence and some of its KV heads. A row is a query token and a query head. q and out start
// at the sequence's first token.
template <int kDim>
void attend(float* out, const float* q, const LayerCache& cache, const AttentionStep& step,
            const AttentionShape& shape, int64_t sequence, int64_t first_kv_head,
            int64_t num_kv_heads, std::vector<Vector>& memory) {
  constexpr int kWidth = kDim > 0 ? kDim : kMaxHeadDim;
  const int64_t dim = kDim > 0 ? kDim : shape.head_dim;
  const int64_t group = shape.num_q_heads / shape.num_kv_heads, num_heads = num_kv_heads * group;
  const int64_t query_len = step.query_lens[sequence], length = step.seq_lens[sequence];
  const int64_t num_rows = query_len * num_heads;
  const int64_t block_size = shape.block_size;
  const int64_t num_blocks = (length + block_size - 1) / block_size;
  const int32_t* table = step.block_table + step.rows[sequence] * step.table_stride;

  const auto reader = [&](const void* cells, const float* scales) {
    return BlockReader(cells, scales, block_size, shape.num_kv_heads, first_kv_head, num_kv_heads,
                       dim);
  };
  const BlockReader keys = reader(cache.keys, cache.key_scales);
  const BlockReader values = reader(cache.values, cache.value_scales);
  const int64_t key_stride = keys.stride();

  const Scratch<kWidth> scratch(memory, num_rows, length + block_size,
                                cache.key_scales ? block_size * key_stride : 0);
  const auto token = [&](int64_t row) { return row / num_heads; };
  const auto head = [&](int64_t row) { return first_kv_head * group + row % num_heads; };
  const auto prefetch_block = [&](const BlockReader& from, int64_t i) {
    if (i < num_blocks) from.prefetch(table[i]);
  };

  // Row r sees the keys [first(r), visible(r)); no row sees one before first_block.
  const auto visible = [&](int64_t row) { return length - query_len + row / num_heads + 1; };
  const auto first = [&](int64_t row) {
    return shape.window > 0 ? std::max<int64_t>(0, visible(row) - shape.window) : 0;
  };
  const int64_t first_block = first(0) / block_size;

  for (int64_t i = first_block; i < num_blocks; ++i) {
    prefetch_block(keys, i + 1);
    const int64_t count = std::min(block_size, length - i * block_size);
    const float* block = keys.block(table[i], count, scratch.block);
    for (int64_t row = 0; row < num_rows; ++row) {
      const float* query = q + token(row) * shape.q_stride + head(row) * dim;
      const float* head_keys = block + row % num_heads / group * dim;
      score_block<kDim>(scratch.scores_of(row) + i * block_size, query, head_keys, count,
                        key_stride, dim, shape.scale);
    }
  }

  prefetch_block(values, first_block);
  for (int64_t row = 0; row < num_rows; ++row) {
    float* scores = scratch.scores_of(row) + first(row);
    const int64_t count = visible(row) - first(row);
    if (shape.softcap > 0)
      for (int64_t j = 0; j < count; ++j)
        scores[j] = shape.softcap * std::tanh(scores[j] / shape.softcap);
    softmax(scores, count, shape.sinks ? shape.sinks + head(row) : nullptr);
  }
  for (int64_t i = first_block; i < num_blocks; ++i) {
    prefetch_block(values, i + 1);
    const float* block =
        values.block(table[i], std::min(block_size, length - i * block_size), scratch.block);
    for (int64_t row = 0; row < num_rows; ++row) {
      const int64_t skipped = std::max<int64_t>(0, first(row) - i * block_size);
      const int64_t count = std::min(block_size, visible(row) - i * block_size) - skipped;
      const float* head_values = block + row % num_heads / group * dim;
      add_values<kDim>(scratch.sums_of(row), scratch.scores_of(row) + i * block_size + skipped,
                       head_values + skipped * key_stride, count, key_stride, dim);
    }
  }
  for (int64_t row = 0; row < num_rows; ++row) {
    float* result = out + (token(row) * shape.num_q_heads + head(row)) * dim;
    const auto sums = scratch.sums_of(row);
#pragma omp simd
    for (int64_t d = 0; d < dim; ++d) result[d] = sums[0][d] + sums[1][d];
  }
}

using Attend = void (*)(float*, const float*, const LayerCache&, const AttentionStep&,
                        const AttentionShape&, int64_t, int64_t, int64_t, std::vector<Vector>&);

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

// How the threads share out the attention of a step: with few sequences by KV heads, else a sequence
// stays with one thread, which then reads whole blocks.
struct AttentionParts {
  int64_t parts, num_heads, num_items;

  AttentionParts(int64_t num_sequences, int64_t num_kv_heads, int64_t num_threads)
      : parts(num_sequences < 2 * num_threads ? num_kv_heads : 1),
        num_heads(num_kv_heads / parts),
        num_items(num_sequences * parts) {}
  int64_t sequence(int64_t item) const { return item / parts; }
  int64_t first_head(int64_t item) const { return item % parts * num_heads; }
};

}  // namespace
