// Memory-bound row operations: every element is read and written once, 16 bytes at a time, with
// fp32 arithmetic that rounds exactly where the reference does.

#include <type_traits>

#include "common/dependent_launch.cuh"
#include "norm_rope/layer_ops.cuh"
#include "norm_rope/rows.cuh"
#include "quantization/fp8.cuh"

namespace sluice {
namespace {

template <typename T, int kVectors, bool kWide>
__global__ void __launch_bounds__(1024) rms_norm_kernel(const RmsNorm p) {
  Vector<T> values[kVectors];
  normed_row<kWide>(values, p);
  const int vectors = p.width / Vector<T>::kSize;
  auto* out = static_cast<Vector<T>*>(p.out) + static_cast<int64_t>(blockIdx.x) * vectors;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int i = j * blockDim.x + threadIdx.x;
    if (i < vectors) out[i] = values[j];
  }
}

// A column of CTAs takes every gridDim.y-th row: a thread keeps its place in a row, since to divide
// an index by their width takes more instructions, and more energy, than the gating.
template <typename T, Activation kActivation>
__global__ void __launch_bounds__(256) gated_mul_kernel(T* out, const T* x, int rows, int vectors) {
  using V = Vector<T>;
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  wait_for_inputs();
  allow_next();
  if (at >= vectors) return;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const V* gate = reinterpret_cast<const V*>(x) + row * 2 * vectors + at;
    reinterpret_cast<V*>(out)[row * vectors + at] = gated<kActivation>(gate[0], gate[vectors]);
  }
}

// A thread turns one pair of vectors of a head, `pairs` neighbouring threads (a power of two, at
// most a warp) the whole head; the heads are those of q, then k, then v. For rotary_dim ==
// head_dim.
template <typename T, bool kFp8, bool kWide>
__global__ void __launch_bounds__(256) rope_vectors_kernel(const RopeParams p, int pairs) {
  using V = Vector<T>;
  wait_for_inputs();
  allow_next();
  const int heads = p.q_heads + 2 * p.kv_heads;
  const int64_t index = blockIdx.x * 256ll + threadIdx.x;
  const int64_t item = index / pairs;
  const int pair = static_cast<int>(index % pairs);
  if (item >= static_cast<int64_t>(p.tokens) * heads) return;  // whole groups leave together
  const int64_t token = item / heads;
  const int head = static_cast<int>(item % heads);
  const int D = p.head_dim;
  const bool is_q = head < p.q_heads, is_v = head >= p.q_heads + p.kv_heads;
  const int kv = is_q ? 0 : (head - p.q_heads) % p.kv_heads;
  const int64_t at = token * p.row_stride + (is_q ? head : kv) * D;
  const T* src = static_cast<const T*>(is_q ? p.q : is_v ? p.v : p.k) + at;
  const V* vectors = reinterpret_cast<const V*>(src);
  V a = vectors[pair], b = vectors[pair + pairs];

  if (!is_v) {
    const void* norm = is_q ? p.q_norm : p.k_norm;
    if (norm) {
      float squares = 0.f;
#pragma unroll
      for (int e = 0; e < V::kSize; ++e) {
        squares += to_float(a.x[e]) * to_float(a.x[e]) + to_float(b.x[e]) * to_float(b.x[e]);
      }
      const unsigned lane = threadIdx.x % 32;
      const unsigned group = (pairs == 32 ? ~0u : (1u << pairs) - 1) << (lane / pairs * pairs);
      for (int d = pairs / 2; d > 0; d /= 2) squares += __shfl_xor_sync(group, squares, d);
      const float scale = rsqrtf(squares / D + p.eps);
      const auto wa = VectorWeights<T, kWide>::load(norm, pair);
      const auto wb = VectorWeights<T, kWide>::load(norm, pair + pairs);
#pragma unroll
      for (int e = 0; e < V::kSize; ++e) {
        a.x[e] = from_float<T>(weighted<T, kWide>(to_float(a.x[e]), scale, wa[e]));
        b.x[e] = from_float<T>(weighted<T, kWide>(to_float(b.x[e]), scale, wb[e]));
      }
    }
    const float* cos = p.cos_sin + p.positions[token] * D + pair * V::kSize;
    const float* sin = cos + D / 2;
#pragma unroll
    for (int e = 0; e < V::kSize; ++e) {
      const float x = to_float(a.x[e]), y = to_float(b.x[e]);
      a.x[e] = from_float<T>(x * cos[e] - y * sin[e]);
      b.x[e] = from_float<T>(y * cos[e] + x * sin[e]);
    }
  }
  T* dst = static_cast<T*>(p.q) + at;
  if (!is_q) {
    const int64_t slot = p.slots[token];
    if (slot < 0) return;
    if constexpr (kFp8) {
      auto* cache = static_cast<uint8_t*>(is_v ? p.v_cache : p.k_cache);
      auto* stored = reinterpret_cast<Fp8Vector<T>*>(cache + (slot * p.kv_heads + kv) * D);
      const float factor = 1.f / (is_v ? p.v_scale : p.k_scale)[kv];
      stored[pair] = to_e4m3(a, factor);
      stored[pair + pairs] = to_e4m3(b, factor);
      return;
    }
    dst = static_cast<T*>(is_v ? p.v_cache : p.k_cache) + (slot * p.kv_heads + kv) * D;
  }
  reinterpret_cast<V*>(dst)[pair] = a;
  reinterpret_cast<V*>(dst)[pair + pairs] = b;
}

// Any rotary_dim. One warp per token and head.
template <typename T, bool kFp8, bool kWide>
__global__ void __launch_bounds__(256) rope_and_cache_kernel(const RopeParams p) {
  wait_for_inputs();
  allow_next();
  const int heads = p.q_heads + 2 * p.kv_heads;
  const int64_t item = blockIdx.x * 8ll + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (item >= static_cast<int64_t>(p.tokens) * heads) return;
  const int64_t token = item / heads;
  const int head = item % heads;
  const int D = p.head_dim;
  const bool is_q = head < p.q_heads, is_v = head >= p.q_heads + p.kv_heads;
  const int64_t slot = p.slots[token];
  if (!is_q && slot < 0) return;

  const int kv = is_q ? 0 : (head - p.q_heads) % p.kv_heads;
  const T* src = is_q ? static_cast<const T*>(p.q) + token * p.row_stride + head * D
                      : static_cast<const T*>(is_v ? p.v : p.k) + token * p.row_stride + kv * D;
  void* cache = is_v ? p.v_cache : p.k_cache;
  const int64_t to = (slot * p.kv_heads + kv) * D;
  const float factor = kFp8 && !is_q ? 1.f / (is_v ? p.v_scale : p.k_scale)[kv] : 1.f;
  T* dst = is_q ? static_cast<T*>(p.q) + token * p.row_stride + head * D
                : static_cast<T*>(cache) + to;
  auto store = [&](int i, float x) {
    if (kFp8 && !is_q) {
      static_cast<uint8_t*>(cache)[to + i] = to_e4m3(rounded<T>(x) * factor);
    } else {
      dst[i] = from_float<T>(x);
    }
  };
  if (kFp8 && is_v) {
    for (int i = lane; i < D; i += 32) store(i, to_float(src[i]));
    return;
  }
  if (is_v) {
    for (int i = lane; i < D / Vector<T>::kSize; i += 32) {
      reinterpret_cast<Vector<T>*>(dst)[i] = reinterpret_cast<const Vector<T>*>(src)[i];
    }
    return;
  }

  using Norm = std::conditional_t<kWide, float, T>;
  const Norm* norm = static_cast<const Norm*>(is_q ? p.q_norm : p.k_norm);
  float scale = 1.f;
  if (norm) {
    float squares = 0.f;
    for (int i = lane; i < D; i += 32) squares += to_float(src[i]) * to_float(src[i]);
    scale = rsqrtf(warp_sum(squares) / D + p.eps);
  }
  auto load = [&](int i) {
    const float x = to_float(src[i]);
    return norm ? rounded<T>(weighted<T, kWide>(x, scale, to_float(norm[i]))) : x;
  };
  const int half = p.rotary_dim / 2;
  const float* cos = p.cos_sin + p.positions[token] * p.rotary_dim;
  for (int i = lane; i < half; i += 32) {
    const float a = load(i), b = load(i + half), c = cos[i], s = cos[half + i];
    store(i, a * c - b * s);
    store(i + half, b * c + a * s);
  }
  for (int i = p.rotary_dim + lane; i < D; i += 32) store(i, load(i));
}

template <typename T, bool kWide>
cudaError_t launch_norm(const RmsNorm& p, cudaStream_t stream) {
  const int vectors = p.width / Vector<T>::kSize;
  const int threads = row_threads(vectors);
  auto run = [&](auto kernel) { return launch_dependent(kernel, p.rows, threads, 0, stream, p); };
  if (vectors <= threads) return run(rms_norm_kernel<T, 1, kWide>);
  if (vectors <= kRowVectors * threads) return run(rms_norm_kernel<T, kRowVectors, kWide>);
  return cudaErrorInvalidValue;
}

template <typename T>
cudaError_t rms_norm_typed(const RmsNorm& p, cudaStream_t stream) {
  if constexpr (std::is_same_v<T, float>) return launch_norm<T, false>(p, stream);
  return p.wide ? launch_norm<T, true>(p, stream) : launch_norm<T, false>(p, stream);
}

template <typename T>
cudaError_t gated_mul_typed(void* out, const void* x, int rows, int width, Activation activation,
                            cudaStream_t stream) {
  constexpr int kMostThreads = 256, kMostCtas = 132 * 16;
  const int vectors = width / Vector<T>::kSize;
  const unsigned threads = min(kMostThreads, (vectors + 31) / 32 * 32);
  const unsigned columns = (vectors + threads - 1) / threads;
  const unsigned most = max(1u, kMostCtas / columns);
  auto kernel = activation == Activation::kSilu ? gated_mul_kernel<T, Activation::kSilu>
                                                : gated_mul_kernel<T, Activation::kGeluTanh>;
  return launch_dependent(kernel, dim3(columns, min(static_cast<unsigned>(rows), most)), threads, 0,
                          stream, static_cast<T*>(out), static_cast<const T*>(x), rows, vectors);
}

template <typename T, bool kFp8, bool kWide>
cudaError_t launch_rope(const RopeParams& p, cudaStream_t stream) {
  const int64_t items = static_cast<int64_t>(p.tokens) * (p.q_heads + 2 * p.kv_heads);
  const int pairs = p.head_dim / 2 / Vector<T>::kSize;
  const bool whole = p.rotary_dim == p.head_dim && p.head_dim == 2 * pairs * Vector<T>::kSize;
  if (whole && pairs > 0 && pairs <= 32 && (pairs & (pairs - 1)) == 0) {
    return launch_dependent(rope_vectors_kernel<T, kFp8, kWide>,
                            (items * pairs + 255) / 256, 256, 0, stream, p, pairs);
  }
  return launch_dependent(rope_and_cache_kernel<T, kFp8, kWide>, (items + 7) / 8, 256, 0,
                          stream, p);
}

template <typename T>
cudaError_t rope_typed(const RopeParams& p, cudaStream_t stream) {
  auto run = [&](auto wide) {
    constexpr bool kWide = decltype(wide)::value && !std::is_same_v<T, float>;
    return p.k_scale ? launch_rope<T, true, kWide>(p, stream)
                     : launch_rope<T, false, kWide>(p, stream);
  };
  return p.wide_norms ? run(std::true_type{}) : run(std::false_type{});
}

}  // namespace

cudaError_t rms_norm(const RmsNorm& norm, Dtype dtype, cudaStream_t stream) {
  if (norm.rows == 0) return cudaSuccess;
  return with_type(dtype, [&](auto type) {
    return rms_norm_typed<typename decltype(type)::type>(norm, stream);
  });
}

cudaError_t gated_mul(void* out, const void* x, int rows, int width, Activation activation,
                      Dtype dtype, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  return with_type(dtype, [&](auto type) {
    return gated_mul_typed<typename decltype(type)::type>(out, x, rows, width, activation, stream);
  });
}

cudaError_t rope_and_cache(const RopeParams& params, Dtype dtype, cudaStream_t stream) {
  if (params.tokens == 0) return cudaSuccess;
  return with_type(dtype, [&](auto type) {
    return rope_typed<typename decltype(type)::type>(params, stream);
  });
}

}  // namespace sluice
