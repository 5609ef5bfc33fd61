// What one row of a step goes through, in float32, and the vectors it is written with.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cpu/cache.h"

namespace {

constexpr int64_t kParallelWork = 1 << 15;  // Elements below which waking threads costs more.
constexpr int kMaxHeadDim = 256;

// As many lanes as the machine has: wider vectors than that are taken apart badly.
#if defined(__AVX512F__)
constexpr int kLanes = 16;
#define SLUICE_EVEN {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30}
#define SLUICE_ODD {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31}
#define SLUICE_LOW {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23}
#define SLUICE_HIGH {8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31}
#elif defined(__AVX__)
constexpr int kLanes = 8;
#define SLUICE_EVEN {0, 2, 4, 6, 8, 10, 12, 14}
#define SLUICE_ODD {1, 3, 5, 7, 9, 11, 13, 15}
#define SLUICE_LOW {0, 8, 1, 9, 2, 10, 3, 11}
#define SLUICE_HIGH {4, 12, 5, 13, 6, 14, 7, 15}
#else
constexpr int kLanes = 4;
#define SLUICE_EVEN {0, 2, 4, 6}
#define SLUICE_ODD {1, 3, 5, 7}
#define SLUICE_LOW {0, 4, 1, 5}
#define SLUICE_HIGH {2, 6, 3, 7}
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

struct RopeShape {
  int64_t num_q_heads, num_kv_heads, head_dim, rotary_dim;
  const float *q_norm, *k_norm;  // [head_dim] weights of a norm before the rotation, or null
  float eps;
};

// One head: normed if there is a norm, its first rotary_dim dimensions rotated; out may be x.
inline void norm_and_rope_head(float* out, const float* x, const float* norm, const float* cos,
                               const RopeShape& shape) {
  const int64_t dim = shape.head_dim, half = shape.rotary_dim / 2;
  if (norm != nullptr)
    rms_norm_row(out, x, nullptr, norm, dim, shape.eps);
  else if (out != x)
    std::memcpy(out + 2 * half, x + 2 * half, (dim - 2 * half) * sizeof(float));
  rope_head(out, norm != nullptr ? out : x, cos, cos + half, half);
}

// One token: q is rotated in place, k on its way to its slot; v goes to its slot as it is.
void rope_and_cache_row(float* q, const float* k, const float* v, const LayerCache& cache,
                        const float* cos, int64_t slot, const RopeShape& shape) {
  static thread_local std::vector<float> turned;
  const int64_t dim = shape.head_dim, kv_width = shape.num_kv_heads * dim;
  turned.resize(dim);
  for (int64_t head = 0; head < shape.num_q_heads; ++head)
    norm_and_rope_head(q + head * dim, q + head * dim, shape.q_norm, cos, shape);
  if (slot < 0) return;
  for (int64_t head = 0; head < shape.num_kv_heads; ++head) {
    const int64_t at = slot * kv_width + head * dim;
    norm_and_rope_head(turned.data(), k + head * dim, shape.k_norm, cos, shape);
    store_head(cache.keys, cache.key_scales, at, head, turned.data(), dim);
    store_head(cache.values, cache.value_scales, at, head, v + head * dim, dim);
  }
}

}  // namespace

