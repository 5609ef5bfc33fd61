// GEMMs of few tokens with weights of eight or four bits: skinny_linear.cu, with a step
// between the load of a weight and the instruction that uses it.
//
// A thread takes 16 bytes in a row of a feature, 16 or 32 weights, and the same elements of x.

#include "common/dependent_launch.cuh"
#include "common/device.cuh"
#include "common/mma.cuh"
#include "gemm/quantized_rows.cuh"

namespace sluice {
namespace {

// kGroups: of 8 tokens; kUnroll: chunks under way per warp; kCtas: on an SM.
template <typename Format, int kGroups, int kWarps, int kUnroll, int kCtas>
__global__ void __launch_bounds__(kWarps * 32, kCtas)
    quantized_linear_kernel(const QuantizedLinear p) {
  using T = typename Format::Operand;
  using Weights = Chunks<Format, kWarps, kUnroll>;
  constexpr int kElements = RowPair<Format>::kElements;
  __shared__ float partial[kWarps][kSkinnyFeatures][kGroups * 8 + 1];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const RowPair<Format> rows(p, g, t);

  float sum[kGroups][4] = {};
  Weights now, next;
  constexpr int kStep = kWarps * kUnroll;
  now.load(p, rows, 0, warp);
  wait_for_inputs();
  allow_next();
  const T* x = static_cast<const T*>(p.x) + t * kElements;
  for (int first = 0; first < rows.num_chunks; first += kStep) {
    next.load(p, rows, first + kStep, warp);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
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

  keep_skinny(partial[warp], sum, g, t);
  __syncthreads();
  store_skinny<T, kWarps * 32>(p.out, p.tokens, p.features, p.gated, [&](int row, int token) {
    const int feature = skinny_feature(row, p.features, p.gated);
    float total = 0.f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += partial[w][row][token];
    total *= Format::scale(p, feature);
    if (p.bias) total += to_float(static_cast<const T*>(p.bias)[feature]);
    return rounded<T>(total);
  });
}

template <typename Format, int kGroups, int kWarps, int kUnroll, int kCtas>
cudaError_t launch(const QuantizedLinear& p, cudaStream_t stream) {
  auto kernel = quantized_linear_kernel<Format, kGroups, kWarps, kUnroll, kCtas>;
  return launch_dependent(kernel, p.features / kSkinnyFeatures, kWarps * 32, 0, stream, p);
}

// The fastest of seven forms on an H200, by how many CTAs an SM gets.
template <typename Format, int kWarpsOfTwo, int kMany>
cudaError_t launch_up_to_8(const QuantizedLinear& p, cudaStream_t stream) {
  const int ctas = p.features / kSkinnyFeatures;
  if (ctas <= 2 * num_sms()) return launch<Format, 1, kWarpsOfTwo, 2, 2>(p, stream);
  if (ctas <= 3 * num_sms()) return launch<Format, 1, 8, 2, 3>(p, stream);
  return launch<Format, 1, 4, 2, kMany>(p, stream);
}

template <typename T>
cudaError_t launch_fp8(const QuantizedLinear& p, cudaStream_t stream) {
  return p.tokens > 8 ? launch<Fp8<T>, 2, 8, 2, 3>(p, stream)
                      : launch_up_to_8<Fp8<T>, 16, 6>(p, stream);
}

template <typename T>
cudaError_t launch_fp8_blocks(const QuantizedLinear& p, cudaStream_t stream) {
  return p.tokens > 8 ? launch<Fp8Blocks<T>, 2, 8, 4, 2>(p, stream)
                      : launch_up_to_8<Fp8Blocks<T>, 8, 6>(p, stream);
}

template <typename T>
cudaError_t launch_int4(const QuantizedLinear& p, cudaStream_t stream) {
  return p.tokens > 8 ? launch<Int4<T>, 2, 8, 4, 2>(p, stream)
                      : launch_up_to_8<Int4<T>, 8, 4>(p, stream);
}

}  // namespace

cudaError_t skinny_fp8_linear(const QuantizedLinear& linear, bool bf16, cudaStream_t stream) {
  if (linear.tokens == 0) return cudaSuccess;
  if (is_gemv(linear)) return fp8_gemv(linear, bf16, stream);
  if (linear.block_rows > 0) {
    return bf16 ? launch_fp8_blocks<__nv_bfloat16>(linear, stream)
                : launch_fp8_blocks<__half>(linear, stream);
  }
  return bf16 ? launch_fp8<__nv_bfloat16>(linear, stream) : launch_fp8<__half>(linear, stream);
}

cudaError_t skinny_int4_linear(const QuantizedLinear& linear, bool bf16, cudaStream_t stream) {
  if (linear.tokens == 0) return cudaSuccess;
  if (is_gemv(linear)) return int4_gemv(linear, bf16, stream);
  return bf16 ? launch_int4<__nv_bfloat16>(linear, stream) : launch_int4<__half>(linear, stream);
}

}  // namespace sluice
