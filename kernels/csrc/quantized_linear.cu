// Matrix products of few tokens with weights of eight or four bits: skinny_linear.cu, with a step
// between the load of a weight and the instruction that uses it.
//
// A thread takes 16 bytes in a row of a feature, 16 or 32 weights, and the same elements of x.

#include "dependent_launch.cuh"
#include "mma.cuh"
#include "one_token_linear.cuh"
#include "quantized_rows.cuh"

namespace sluice {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;

template <typename Format, int kGroups>
constexpr int kUnroll = 2;  // chunks under way per warp, for groups of 8 tokens
template <typename T, int kGroups>
constexpr int kUnroll<Fp8Blocks<T>, kGroups> = 4;
template <typename T>
constexpr int kUnroll<Int4<T>, 2> = 4;

// Few chunks under way in three CTAs of an SM are faster than many in two, where registers allow.
template <typename Format, int kGroups>
__global__ void __launch_bounds__(kThreads, (kUnroll<Format, kGroups> == 2 ? 3 : 2))
    quantized_linear_kernel(const QuantizedLinear p) {
  using T = typename Format::Operand;
  using Weights = Chunks<Format, kWarps, kUnroll<Format, kGroups>>;
  constexpr int kElements = RowPair<Format>::kElements;
  __shared__ float partial[kWarps][kSkinnyFeatures][kGroups * 8 + 1];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const RowPair<Format> rows(p, g, t);

  float sum[kGroups][4] = {};
  Weights now, next;
  constexpr int kStep = kWarps * kUnroll<Format, kGroups>;
  now.load(p, rows, 0, warp);
  wait_for_inputs();
  const T* x = static_cast<const T*>(p.x) + t * kElements;
  for (int first = 0; first < rows.num_chunks; first += kStep) {
    next.load(p, rows, first + kStep, warp);
#pragma unroll
    for (int u = 0; u < kUnroll<Format, kGroups>; ++u) {
      const int chunk = Weights::place(first, warp, u);
      if (chunk >= rows.num_chunks) break;
      float of_chunk[Format::kScalesChunks ? kGroups : 1][4] = {};
#pragma unroll
      for (int i = 0; i < kElements / 8; ++i) {
        uint32_t a[4], b[4];
        Format::widen(a, now.low[u], i, now.low_group[u]);
        Format::widen(b, now.high[u], i, now.high_group[u]);
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          const int token = group * 8 + g;
          uint4 v = make_uint4(0, 0, 0, 0);
          if (token < p.tokens) {
            const T* row = x + token * p.x_stride;
            v = *reinterpret_cast<const uint4*>(row + chunk * Format::kChunk + i * 8);
          }
          constexpr bool kScales = Format::kScalesChunks;
          float(&to)[4] = kScales ? of_chunk[kScales ? group : 0] : sum[group];
          Half<T>::mma(to, {a[0], b[0], a[1], b[1]}, v.x, v.y);
          Half<T>::mma(to, {a[2], b[2], a[3], b[3]}, v.z, v.w);
        }
      }
      if constexpr (Format::kScalesChunks) {
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
    total *= Format::scale(p, feature);
    if (p.bias) total += to_float(static_cast<const T*>(p.bias)[feature]);
    return rounded<T>(total);
  });
}

template <typename Format>
cudaError_t launch(const QuantizedLinear& p, cudaStream_t stream) {
  auto kernel =
      p.tokens <= 8 ? quantized_linear_kernel<Format, 1> : quantized_linear_kernel<Format, 2>;
  return launch_dependent(kernel, p.features / kSkinnyFeatures, kThreads, 0, stream, p);
}

}  // namespace

cudaError_t skinny_fp8_linear(const QuantizedLinear& linear, bool bf16, cudaStream_t stream) {
  if (linear.tokens == 0) return cudaSuccess;
  if (is_one_token(linear)) return one_token_fp8_linear(linear, bf16, stream);
  if (linear.block_rows > 0) {
    return bf16 ? launch<Fp8Blocks<__nv_bfloat16>>(linear, stream)
                : launch<Fp8Blocks<__half>>(linear, stream);
  }
  return bf16 ? launch<Fp8<__nv_bfloat16>>(linear, stream) : launch<Fp8<__half>>(linear, stream);
}

cudaError_t skinny_int4_linear(const QuantizedLinear& linear, bool bf16, cudaStream_t stream) {
  if (linear.tokens == 0) return cudaSuccess;
  if (is_one_token(linear)) return one_token_int4_linear(linear, bf16, stream);
  return bf16 ? launch<Int4<__nv_bfloat16>>(linear, stream) : launch<Int4<__half>>(linear, stream);
}

}  // namespace sluice
