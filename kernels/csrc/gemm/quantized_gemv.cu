// The product of a lone token with weights of eight or four bits: quantized_linear.cu, for steps
// whose time is that of having enough weights under way and of widening them.
//
// x lies in shared memory, so that no loads of x come between those of weights. For FP8 it lies
// there as float16, scaled by a power of two: one instruction widens two numbers in e4m3 to
// float16, none to bfloat16.

#include <type_traits>

#include "common/dependent_launch.cuh"
#include "common/device.cuh"
#include "common/mma.cuh"
#include "gemm/quantized_rows.cuh"

namespace sluice {
namespace {

constexpr int kLongRow = 16384;  // more elements of x would keep CTAs from sharing an SM

// 2^n, or 2^-n if inverse, so that `largest` * 2^n is below 2^15, as far as a float has such an n.
__device__ __forceinline__ float power_below_2_15(float largest, bool inverse) {
  const int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - 127;
  const int n = min(max(14 - exponent, -100), 100);
  return __uint_as_float(static_cast<uint32_t>(127 + (inverse ? -n : n)) << 23);
}

__device__ __forceinline__ float2 wide(uint32_t two_bf16) {
  return {__uint_as_float(two_bf16 << 16), __uint_as_float(two_bf16 & 0xffff0000)};
}

template <int kWarps>
__device__ __forceinline__ float largest_of_cta(float x) {
  __shared__ float of_warps[kWarps];
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, d));
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
  __syncthreads();
  x = of_warps[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) x = fmaxf(x, of_warps[w]);
  return x;
}

// x of type T as Operand. Returns what sums are to be multiplied with.
//
// What is below 2^-29 of the largest element has fewer bits than before, far fewer than matter.
template <typename T, typename Operand, int kWarps>
__device__ __forceinline__ float keep_x(uint4* kept, const void* from, int k) {
  const uint4* x = static_cast<const uint4*>(from);
  float largest = 0.f;
  for (int i = threadIdx.x; i < k / 8; i += kWarps * 32) {
    const uint4 v = x[i];
    kept[i] = v;
    if constexpr (!std::is_same_v<T, Operand>) {
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float2 two = wide(word(v, w) & 0x7fff7fff);
        largest = fmaxf(largest, fmaxf(two.x, two.y));
      }
    }
  }
  float inverse = 1.f;
  if constexpr (!std::is_same_v<T, Operand>) {
    largest = largest_of_cta<kWarps>(largest);
    const float factor = power_below_2_15(largest, false);
    for (int i = threadIdx.x; i < k / 8; i += kWarps * 32) {  // what this thread wrote
      const uint4 v = kept[i];
      uint32_t out[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float2 two = wide(word(v, w));
        out[w] = Half<Operand>::pack(two.x * factor, two.y * factor);
      }
      kept[i] = make_uint4(out[0], out[1], out[2], out[3]);
    }
    inverse = power_below_2_15(largest, true);
  }
  __syncthreads();
  return inverse;
}

template <typename T, typename Format, int kWarps, int kUnroll, int kCtas>
__global__ void __launch_bounds__(kWarps * 32, kCtas) gemv_kernel(const QuantizedLinear p) {
  using Operand = typename Format::Operand;
  using Weights = Chunks<Format, kWarps, kUnroll>;
  constexpr int kVectors = RowPair<Format>::kElements / 8;  // of x, for a thread's part of a chunk
  __shared__ float partial[kWarps][kSkinnyFeatures];
  extern __shared__ __align__(16) uint8_t raw[];
  uint4* kept = reinterpret_cast<uint4*>(raw);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const RowPair<Format> rows(p, g, t);

  float sum[4] = {};  // of row g in [0] and of g + 8 in [2], for t = 0: the token is column 0
  Weights now, next;
  now.load(p, rows, 0, warp);
  wait_for_inputs();
  allow_next();
  const float factor = keep_x<T, Operand, kWarps>(kept, p.x, p.k);
  for (int first = 0; first < rows.num_chunks; first += kWarps * kUnroll) {
    next.load(p, rows, first + kWarps * kUnroll, warp);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int chunk = Weights::place(first, warp, u);
      if (chunk >= rows.num_chunks) break;
      float of_chunk[4] = {};
      float(&to)[4] = Format::kScalesChunks ? of_chunk : sum;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        uint32_t a[4], b[4];
        Format::widen(a, now.low[u], i, now.low_group[u]);
        Format::widen(b, now.high[u], i, now.high_group[u]);
        uint4 v = make_uint4(0, 0, 0, 0);
        if (g == 0) v = kept[chunk * (Format::kChunk / 8) + t * kVectors + i];
        Half<Operand>::mma(to, {a[0], b[0], a[1], b[1]}, v.x, v.y);
        Half<Operand>::mma(to, {a[2], b[2], a[3], b[3]}, v.z, v.w);
      }
      if constexpr (Format::kScalesChunks) {
        sum[0] += of_chunk[0] * now.low_group[u];
        sum[2] += of_chunk[2] * now.high_group[u];
      }
    }
    now = next;
  }

  if (t == 0) {
    partial[warp][g] = sum[0];
    partial[warp][g + 8] = sum[2];
  }
  __syncthreads();
  store_skinny<T, kWarps * 32>(p.out, 1, p.features, p.gated, [&](int row, int) {
    const int feature = skinny_feature(row, p.features, p.gated);
    float total = 0.f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += partial[w][row];
    total *= Format::scale(p, feature) * factor;
    if (p.bias) total += to_float(static_cast<const T*>(p.bias)[feature]);
    return rounded<T>(total);
  });
}

template <typename T, typename Format, int kWarps, int kUnroll, int kCtas>
cudaError_t launch(const QuantizedLinear& p, cudaStream_t stream) {
  auto kernel = gemv_kernel<T, Format, kWarps, kUnroll, kCtas>;
  static const cudaError_t ready = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxGemvK * sizeof(T));
  if (ready != cudaSuccess) return ready;
  const int ctas = p.features / kSkinnyFeatures;
  return launch_dependent(kernel, ctas, kWarps * 32, p.k * sizeof(T), stream, p);
}

// By how many CTAs an SM gets: few must have as much under way as many. Each form is the fastest of
// nine on an H200, of 4 to 16 warps, 1 to 6 chunks each and 2 to 6 CTAs an SM.
template <typename T, typename Format>
cudaError_t launch_fp8(const QuantizedLinear& p, cudaStream_t stream) {
  const int ctas = p.features / kSkinnyFeatures;
  if (ctas <= 2 * num_sms() || p.k > kLongRow) return launch<T, Format, 16, 2, 2>(p, stream);
  if (ctas <= 3 * num_sms()) return launch<T, Format, 8, 2, 3>(p, stream);
  return launch<T, Format, 4, 2, 6>(p, stream);
}

template <typename T>
cudaError_t launch_int4(const QuantizedLinear& p, cudaStream_t stream) {
  const int ctas = p.features / kSkinnyFeatures;
  if (ctas <= 2 * num_sms() || p.k > kLongRow) return launch<T, Int4<T>, 8, 4, 2>(p, stream);
  return launch<T, Int4<T>, 4, 4, 4>(p, stream);
}

}  // namespace

cudaError_t fp8_gemv(const QuantizedLinear& linear, bool bf16, cudaStream_t stream) {
  if (linear.block_rows > 0) {
    return bf16 ? launch_fp8<__nv_bfloat16, Fp8Blocks<__half>>(linear, stream)
                : launch_fp8<__half, Fp8Blocks<__half>>(linear, stream);
  }
  return bf16 ? launch_fp8<__nv_bfloat16, Fp8<__half>>(linear, stream)
              : launch_fp8<__half, Fp8<__half>>(linear, stream);
}

cudaError_t int4_gemv(const QuantizedLinear& linear, bool bf16, cudaStream_t stream) {
  return bf16 ? launch_int4<__nv_bfloat16>(linear, stream) : launch_int4<__half>(linear, stream);
}

}  // namespace sluice
