// The engine's hot ops for CPUs, in float32. Raw pointers, no torch headers: compiles in a second.
//
// Every result is a function of its own row, computed in one fixed order, so it does not depend on
// the batch, on how a prompt was cut into chunks, or on the number of threads.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int64_t kParallelWork = 1 << 15;  // Elements below which waking threads costs more.
constexpr int kMaxHeadDim = 256;

// As many lanes as the machine has: wider vectors than that are taken apart badly.
#if defined(__AVX512F__)
constexpr int kLanes = 16;
#define SLUICE_EVEN {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30}
#define SLUICE_ODD {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31}
#elif defined(__AVX__)
constexpr int kLanes = 8;
#define SLUICE_EVEN {0, 2, 4, 6, 8, 10, 12, 14}
#define SLUICE_ODD {1, 3, 5, 7, 9, 11, 13, 15}
#else
constexpr int kLanes = 4;
#define SLUICE_EVEN {0, 2, 4, 6}
#define SLUICE_ODD {1, 3, 5, 7}
#endif

typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));
typedef int32_t Lanes __attribute__((vector_size(kLanes * sizeof(int32_t))));

inline Vector load(const float* x) {
  Vector v;
  std::memcpy(&v, x, sizeof v);
  return v;
}

inline void store(float* x, Vector v) { std::memcpy(x, &v, sizeof v); }

// exp(x) for x <= 0, within 2 ulp; a polynomial so that loops over it vectorise (Cephes expf).
inline float exp_nonpositive(float x) {
  x = std::max(x, -87.0f);
  const float n = std::rint(x * 1.44269504088896341f);
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return p * power;
}

inline float sum_of_squares(const float* x, int64_t n) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

void rms_norm_row(float* out, const float* x, float* residual, const float* weight, int64_t width,
                  float eps) {
  if (residual != nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) residual[i] += x[i];
    x = residual;
  }
  const float scale = 1.0f / std::sqrt(sum_of_squares(x, width) / width + eps);
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) out[i] = x[i] * scale * weight[i];
}

void silu_mul_row(float* out, const float* gate, const float* up, int64_t width) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    const float e = exp_nonpositive(-std::fabs(gate[i]));
    const float sigmoid = (gate[i] >= 0.0f ? 1.0f : e) / (1.0f + e);
    out[i] = gate[i] * sigmoid * up[i];
  }
}

// Rotates the pairs (i, i + half) of a head; out may be x.
void rope_head(float* out, const float* x, const float* cos, const float* sin, int64_t half) {
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const float first = x[i], second = x[i + half];
    out[i] = first * cos[i] - second * sin[i];
    out[i + half] = second * cos[i] + first * sin[i];
  }
}

}  // namespace

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

struct Shape {
  int64_t num_q_heads, num_kv_heads, head_dim, block_size;
  int64_t q_stride;  // elements between the queries of two tokens
  float scale;
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

// Turns scores into the weights of the values, in place.
inline void softmax(float* scores, int64_t count) {
  float best = scores[0];
#pragma omp simd reduction(max : best)
  for (int64_t j = 0; j < count; ++j) best = std::max(best, scores[j]);
  float sum = 0.0f;
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

inline void prefetch(const float* x, int64_t count) {
  constexpr int64_t kLine = 64 / sizeof(float);
  for (int64_t i = 0; i < count; i += kLine) __builtin_prefetch(x + i, 0, 2);
}

// One sequence and some of its KV heads. A row is a query token and a query head.
template <int kDim>
void attend(float* out, const float* q, const float* k_cache, const float* v_cache,
            const AttentionStep& step, const Shape& shape, int64_t sequence, int64_t first_kv_head,
            int64_t num_kv_heads, std::vector<Vector>& scratch) {
  constexpr int kWidth = kDim > 0 ? kDim : kMaxHeadDim;
  const int64_t dim = kDim > 0 ? kDim : shape.head_dim;
  const int64_t group = shape.num_q_heads / shape.num_kv_heads, num_heads = num_kv_heads * group;
  const int64_t query_len = step.query_lens[sequence], length = step.seq_lens[sequence];
  const int64_t num_rows = query_len * num_heads;
  const int64_t key_stride = shape.num_kv_heads * dim, block_size = shape.block_size;
  const int64_t num_blocks = (length + block_size - 1) / block_size;
  const int32_t* table = step.block_table + step.rows[sequence] * step.table_stride;

  // Scratch: the rows' scores, each row starting on a vector and with room for the last block's to
  // overshoot; then their sums.
  const int64_t row_vectors = (length + block_size) / kLanes + 2;
  constexpr int64_t kSumVectors = 2 * kWidth / kLanes;
  scratch.assign(num_rows * (row_vectors + kSumVectors), Vector{});
  float* all_sums = reinterpret_cast<float*>(scratch.data() + num_rows * row_vectors);
  const auto scores_of = [&](int64_t row) {
    return reinterpret_cast<float*>(scratch.data() + row * row_vectors);
  };
  const auto sums_of = [&](int64_t row) {
    return reinterpret_cast<float(*)[kWidth]>(all_sums + row * 2 * kWidth);
  };

  const auto token = [&](int64_t row) { return step.first_token[sequence] + row / num_heads; };
  const auto head = [&](int64_t row) { return first_kv_head * group + row % num_heads; };
  // The block's first key or value, of the first head.
  const auto block = [&](const float* cache, int64_t i) {
    return cache + table[i] * block_size * key_stride + first_kv_head * dim;
  };
  const auto prefetch_block = [&](const float* cache, int64_t i) {
    if (i >= num_blocks) return;
    if (num_kv_heads == shape.num_kv_heads)
      prefetch(block(cache, i), block_size * key_stride);
    else
      for (int64_t j = 0; j < block_size; ++j)
        prefetch(block(cache, i) + j * key_stride, num_kv_heads * dim);
  };

  for (int64_t i = 0; i < num_blocks; ++i) {
    prefetch_block(k_cache, i + 1);
    const int64_t count = std::min(block_size, length - i * block_size);
    for (int64_t row = 0; row < num_rows; ++row) {
      const float* query = q + token(row) * shape.q_stride + head(row) * dim;
      const float* keys = block(k_cache, i) + row % num_heads / group * dim;
      float* scores = scores_of(row) + i * block_size;
      if constexpr (kDim == 0) {
        score_keys_slowly(scores, query, keys, count, key_stride, dim, shape.scale);
        continue;
      }
      for (int64_t j = 0; j < count; j += kLanes) {
        const float* some = keys + j * key_stride;
        if (count - j >= kLanes)
          score_keys<kDim, true>(scores + j, query, some, kLanes, key_stride, shape.scale);
        else
          score_keys<kDim, false>(scores + j, query, some, count - j, key_stride, shape.scale);
      }
    }
  }

  const auto visible = [&](int64_t row) { return length - query_len + row / num_heads + 1; };
  prefetch_block(v_cache, 0);
  for (int64_t row = 0; row < num_rows; ++row) softmax(scores_of(row), visible(row));
  for (int64_t i = 0; i < num_blocks; ++i) {
    prefetch_block(v_cache, i + 1);
    for (int64_t row = 0; row < num_rows; ++row) {
      const int64_t count = std::min(block_size, visible(row) - i * block_size);
      const float* values = block(v_cache, i) + row % num_heads / group * dim;
      add_values<kDim>(sums_of(row), scores_of(row) + i * block_size, values, count, key_stride,
                       dim);
    }
  }
  for (int64_t row = 0; row < num_rows; ++row) {
    float* result = out + (token(row) * shape.num_q_heads + head(row)) * dim;
    const auto sums = sums_of(row);
#pragma omp simd
    for (int64_t d = 0; d < dim; ++d) result[d] = sums[0][d] + sums[1][d];
  }
}

template <int kDim>
void attend_all(float* out, const float* q, const float* k_cache, const float* v_cache,
                const AttentionStep& step, const Shape& shape, int64_t num_threads) {
  // With few sequences their heads are shared out, else a sequence stays with one thread, which
  // then reads whole blocks.
  const int64_t parts = step.num_sequences < 2 * num_threads ? shape.num_kv_heads : 1;
  const int64_t heads = shape.num_kv_heads / parts, num_items = step.num_sequences * parts;
#pragma omp parallel num_threads(num_threads) if (step.num_sequences > 1)
  {
    static thread_local std::vector<Vector> scratch;
#pragma omp for schedule(dynamic)
    for (int64_t item = 0; item < num_items; ++item)
      attend<kDim>(out, q, k_cache, v_cache, step, shape, item / parts, item % parts * heads, heads,
                   scratch);
  }
}

}  // namespace

extern "C" {

// x, residual (or null; becomes the sum), out: [rows, width]; weight: [width].
void sluice_rms_norm(float* out, const float* x, float* residual, const float* weight, int64_t rows,
                     int64_t width, float eps, int64_t num_threads) {
#pragma omp parallel for num_threads(num_threads) if (rows * width > kParallelWork)
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = row * width;
    rms_norm_row(out + at, x + at, residual ? residual + at : nullptr, weight, width, eps);
  }
}

// gate_up: [rows, 2 * width], out: [rows, width].
void sluice_silu_mul(float* out, const float* gate_up, int64_t rows, int64_t width,
                     int64_t num_threads) {
#pragma omp parallel for num_threads(num_threads) if (rows * width > kParallelWork / 4)
  for (int64_t row = 0; row < rows; ++row) {
    const float* gate = gate_up + row * 2 * width;
    silu_mul_row(out + row * width, gate, gate + width, width);
  }
}

// q, k, v: heads of a token contiguous, `stride` elements between tokens. q is rotated in place, k
// on its way to its slot. cos_sin: [positions, head_dim], cosines first.
void sluice_rope_and_cache(float* q, const float* k, const float* v, float* k_cache, float* v_cache,
                           const float* cos_sin, const int64_t* positions, const int64_t* slots,
                           int64_t num_tokens, int64_t num_q_heads, int64_t num_kv_heads,
                           int64_t head_dim, int64_t stride, int64_t num_threads) {
  const int64_t half = head_dim / 2, kv_width = num_kv_heads * head_dim;
#pragma omp parallel for num_threads(num_threads) if (num_tokens * stride > kParallelWork)
  for (int64_t token = 0; token < num_tokens; ++token) {
    const float* cos = cos_sin + positions[token] * head_dim;
    const float* sin = cos + half;
    float* queries = q + token * stride;
    for (int64_t head = 0; head < num_q_heads; ++head)
      rope_head(queries + head * head_dim, queries + head * head_dim, cos, sin, half);
    const int64_t slot = slots[token];
    if (slot < 0) continue;
    const float* keys = k + token * stride;
    for (int64_t head = 0; head < num_kv_heads; ++head)
      rope_head(k_cache + slot * kv_width + head * head_dim, keys + head * head_dim, cos, sin,
                half);
    std::memcpy(v_cache + slot * kv_width, v + token * stride, kv_width * sizeof(float));
  }
}

// out: [num_tokens, num_q_heads, head_dim]; caches: [blocks, block_size, num_kv_heads, head_dim].
// Only the rows of the step's sequences are written.
void sluice_paged_attention(float* out, const float* q, const float* k_cache, const float* v_cache,
                            const AttentionStep* step, int64_t num_q_heads, int64_t num_kv_heads,
                            int64_t head_dim, int64_t block_size, int64_t q_stride, float scale,
                            int64_t num_threads) {
  const Shape shape{num_q_heads, num_kv_heads, head_dim, block_size, q_stride, scale};
  const auto run = [&](auto attend_with_dim) {
    attend_with_dim(out, q, k_cache, v_cache, *step, shape, num_threads);
  };
  switch (head_dim) {
    case 16: return run(attend_all<16>);
    case 32: return run(attend_all<32>);
    case 48: return run(attend_all<48>);
    case 64: return run(attend_all<64>);
    case 80: return run(attend_all<80>);
    case 96: return run(attend_all<96>);
    case 128: return run(attend_all<128>);
    case 256: return run(attend_all<256>);
    default: return run(attend_all<0>);
  }
}
}
