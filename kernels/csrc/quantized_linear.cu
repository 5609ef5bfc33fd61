// Matrix products of few tokens with weights of eight or four bits: skinny_linear.cu, with a step
// between the load of a weight and the instruction that uses it.
//
// A thread takes 16 bytes in a row of a feature, 16 or 32 weights, and the same elements of x.

#include "dependent_launch.cuh"
#include "mma.cuh"
#include "quantized_linear.cuh"
#include "skinny_output.cuh"
#include "vector.cuh"
#include "widen.cuh"

namespace sluice {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;

__device__ __forceinline__ uint32_t word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

template <typename T>
struct Fp8 {
  static constexpr int kChunk = 64;  // elements of k that a warp takes at a time
  static constexpr bool kScalesChunks = false;
  template <int kGroups>
  static constexpr int kUnroll = 2;  // chunks under way per warp, even

  struct Group {};
  static __device__ __forceinline__ Group group(const QuantizedLinear&, int, int) { return {}; }

  // Eight elements, the i-th eight of a thread's sixteen.
  static __device__ __forceinline__ void widen(uint32_t (&out)[4], const uint4& v, int i, Group) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      out[j] = widen_fp8<T>(word(v, 2 * i + j / 2), j % 2);
    }
  }

  static __device__ __forceinline__ float scale(const QuantizedLinear& p, int feature) {
    return static_cast<const float*>(p.scales)[feature];
  }
};

// With a scale for each block: the sum over a chunk, which lies within one, is multiplied with it.
template <typename T>
struct Fp8Blocks {
  static constexpr int kChunk = 64;
  static constexpr bool kScalesChunks = true;
  template <int kGroups>
  static constexpr int kUnroll = 4;

  using Group = float;
  static __device__ __forceinline__ Group group(const QuantizedLinear& p, int feature, int k) {
    const int columns = (p.k + p.group_size - 1) / p.group_size;
    const int64_t row = feature / p.block_rows;
    return __ldg(static_cast<const float*>(p.scales) + row * columns + k / p.group_size);
  }

  static __device__ __forceinline__ void widen(uint32_t (&out)[4], const uint4& v, int i, Group) {
    Fp8<T>::widen(out, v, i, {});
  }

  static __device__ __forceinline__ float scale(const QuantizedLinear&, int) { return 1.f; }
};

template <typename T>
struct Int4 {
  static constexpr int kChunk = 128;
  static constexpr bool kScalesChunks = false;
  template <int kGroups>
  static constexpr int kUnroll = kGroups == 1 ? 2 : 4;

  using Group = uint32_t;  // scale and zero
  static __device__ __forceinline__ Group group(const QuantizedLinear& p, int feature, int k) {
    const int64_t row = static_cast<int64_t>(feature) * (p.k / p.group_size);
    return __ldg(static_cast<const uint32_t*>(p.scales) + row + k / p.group_size);
  }

  // Eight elements, the i-th eight of a thread's 32: a pair of each word.
  static __device__ __forceinline__ void widen(uint32_t (&out)[4], const uint4& v, int i,
                                               Group group) {
    const Int4Group<T> of(group);
#pragma unroll
    for (int j = 0; j < 4; ++j) out[j] = of.widen(word(v, j), i);
  }

  static __device__ __forceinline__ float scale(const QuantizedLinear&, int) { return 1.f; }
};

// Few chunks under way in three CTAs of an SM are faster than many in two, where registers allow.
template <typename T, template <typename> typename Format, int kGroups>  // groups of 8 tokens
__global__ void __launch_bounds__(kThreads, Format<T>::template kUnroll<kGroups> == 2 ? 3 : 2)
    quantized_linear_kernel(const QuantizedLinear p) {
  using F = Format<T>;
  constexpr int kUnroll = F::template kUnroll<kGroups>;
  constexpr int kElements = F::kChunk / 4;  // of a thread in a chunk
  struct Weights {
    uint4 low[kUnroll], high[kUnroll];
    typename F::Group low_group[kUnroll], high_group[kUnroll];
  };
  __shared__ float partial[kWarps][kSkinnyFeatures][kGroups * 8 + 1];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const int num_chunks = p.k / F::kChunk;
  const int64_t row_bytes = static_cast<int64_t>(num_chunks) * 64;
  const int low = skinny_feature(g, p.features, p.gated);
  const int high = skinny_feature(g + 8, p.features, p.gated);
  const char* low_row = static_cast<const char*>(p.weight) + low * row_bytes + t * 16;
  const char* high_row = static_cast<const char*>(p.weight) + high * row_bytes + t * 16;

  // A warp's chunks come in pairs of neighbours, which are one line of memory in each row.
  auto chunk_of = [&](int first, int u) { return first + u / 2 * 2 * kWarps + warp * 2 + u % 2; };
  auto load = [&](Weights& w, int first) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int chunk = chunk_of(first, u);
      if (chunk >= num_chunks) break;
      w.low[u] = load_once(low_row + chunk * 64);
      w.high[u] = load_once(high_row + chunk * 64);
      const int k = chunk * F::kChunk + t * kElements;
      w.low_group[u] = F::group(p, low, k);
      w.high_group[u] = F::group(p, high, k);
    }
  };

  float sum[kGroups][4] = {};
  Weights now, next;
  constexpr int kStep = kWarps * kUnroll;
  load(now, 0);
  wait_for_inputs();
  const T* x = static_cast<const T*>(p.x) + t * kElements;
  for (int first = 0; first < num_chunks; first += kStep) {
    load(next, first + kStep);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int chunk = chunk_of(first, u);
      if (chunk >= num_chunks) break;
      float of_chunk[F::kScalesChunks ? kGroups : 1][4] = {};
#pragma unroll
      for (int i = 0; i < kElements / 8; ++i) {
        uint32_t a[4], b[4];
        F::widen(a, now.low[u], i, now.low_group[u]);
        F::widen(b, now.high[u], i, now.high_group[u]);
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          const int token = group * 8 + g;
          uint4 v = make_uint4(0, 0, 0, 0);
          if (token < p.tokens) {
            v = *reinterpret_cast<const uint4*>(x + token * p.x_stride + chunk * F::kChunk + i * 8);
          }
          float(&to)[4] = F::kScalesChunks ? of_chunk[F::kScalesChunks ? group : 0] : sum[group];
          Half<T>::mma(to, {a[0], b[0], a[1], b[1]}, v.x, v.y);
          Half<T>::mma(to, {a[2], b[2], a[3], b[3]}, v.z, v.w);
        }
      }
      if constexpr (F::kScalesChunks) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            sum[group][i] += of_chunk[group][i] * (i < 2 ? now.low_group[u] : now.high_group[u]);
          }
        }
      }
    }
    now = next;
  }
  allow_next();

  keep_skinny(partial[warp], sum, g, t);
  __syncthreads();
  store_skinny<T>(p.out, p.tokens, p.features, p.gated, [&](int row, int token) {
    const int feature = skinny_feature(row, p.features, p.gated);
    float total = 0.f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += partial[w][row][token];
    total *= F::scale(p, feature);
    if (p.bias) total += to_float(static_cast<const T*>(p.bias)[feature]);
    return rounded<T>(total);
  });
}

template <typename T, template <typename> typename Format>
cudaError_t launch(const QuantizedLinear& p, cudaStream_t stream) {
  auto kernel = p.tokens <= 8 ? quantized_linear_kernel<T, Format, 1>
                              : quantized_linear_kernel<T, Format, 2>;
  return launch_dependent(kernel, p.features / kSkinnyFeatures, kThreads, 0, stream, p);
}

}  // namespace

cudaError_t skinny_fp8_linear(const QuantizedLinear& linear, bool bf16, cudaStream_t stream) {
  if (linear.tokens == 0) return cudaSuccess;
  if (linear.block_rows > 0) {
    return bf16 ? launch<__nv_bfloat16, Fp8Blocks>(linear, stream)
                : launch<__half, Fp8Blocks>(linear, stream);
  }
  return bf16 ? launch<__nv_bfloat16, Fp8>(linear, stream) : launch<__half, Fp8>(linear, stream);
}

cudaError_t skinny_int4_linear(const QuantizedLinear& linear, bool bf16, cudaStream_t stream) {
  if (linear.tokens == 0) return cudaSuccess;
  return bf16 ? launch<__nv_bfloat16, Int4>(linear, stream) : launch<__half, Int4>(linear, stream);
}

}  // namespace sluice
