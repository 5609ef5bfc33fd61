// Products of few tokens with the matrices of their experts: as skinny_linear.cu, where a CTA makes
// 16 features of one expert for one token, or their sum over all experts of a token.

#include "common/dependent_launch.cuh"
#include "common/vector.cuh"
#include "gemm/skinny_output.cuh"
#include "moe/expert_rows.cuh"

namespace sluice {
namespace {

constexpr int kUnroll = 2;    // chunks under way per warp
constexpr int kPairWarps = 4;  // of a CTA, of which four find room on an SM
constexpr int kSumWarps = 8;

// blockIdx.x is the pair, so that pairs of one expert find its rows in the L2.
template <typename T, template <typename> typename Format>
__global__ void __launch_bounds__(kPairWarps * 32, 4) expert_kernel(const ExpertLinear p) {
  __shared__ float partial[kPairWarps][kSkinnyFeatures];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  using Rows = Format<T>;
  const int num_chunks = p.k / Rows::kChunk;
  const int64_t pair = blockIdx.x;
  wait_for_inputs();
  const int64_t expert = p.experts[pair];
  if (expert >= p.num_experts) return;

  auto feature_of = [&](int row) {
    if (p.gated) return (row < 8 ? 0 : p.features / 2) + static_cast<int>(blockIdx.y) * 8 + row % 8;
    return static_cast<int>(blockIdx.y) * kSkinnyFeatures + row;
  };
  auto row_of = [&](int feature) {
    const int64_t row_bytes = static_cast<int64_t>(num_chunks) * Rows::kChunkBytes;
    const int64_t row = expert * p.features + feature;
    return static_cast<const char*>(p.weight) + row * row_bytes + t * 16;
  };
  const int low = feature_of(g), high = feature_of(g + 8);
  const char *low_row = row_of(low), *high_row = row_of(high);
  const uint32_t *low_scales = nullptr, *high_scales = nullptr;
  if constexpr (Rows::kIsScaled) {
    low_scales = scales_of(p.scales, expert, low, p.features, p.k);
    high_scales = scales_of(p.scales, expert, high, p.features, p.k);
  }
  Rows now[kUnroll], next[kUnroll];
  auto load = [&](Rows(&w)[kUnroll], int first) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int chunk = first + u * kPairWarps;
      const int at = chunk * Rows::kChunkBytes;
      int column = 0;
      if constexpr (Rows::kIsScaled) {
        column = (chunk * Rows::kChunk + t * Rows::kElements) / p.scales.group_size;
      }
      if (chunk < num_chunks) {
        w[u].load(low_row + at, high_row + at, low_scales + column, high_scales + column);
      }
    }
  };
  load(now, warp);
  const T* x = static_cast<const T*>(p.x) + pair / p.pairs_per_row * p.k + t * Rows::kElements;
  float sum[4] = {};
  for (int first = warp; first < num_chunks; first += kPairWarps * kUnroll) {
    load(next, first + kPairWarps * kUnroll);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int chunk = first + u * kPairWarps;
      if (chunk < num_chunks) now[u].multiply(sum, g == 0 ? x + chunk * Rows::kChunk : nullptr);
      now[u] = next[u];
    }
  }
  allow_next();
  if (t == 0) {  // the token is column 0
    partial[warp][g] = sum[0];
    partial[warp][g + 8] = sum[2];
  }
  __syncthreads();
  auto total = [&](int row) {
    float found = 0.f;
#pragma unroll
    for (int w = 0; w < kPairWarps; ++w) found += partial[w][row];
    return rounded<T>(found);
  };
  const int rows = p.gated ? 8 : kSkinnyFeatures, row = threadIdx.x;
  if (row >= rows) return;
  float y = total(row);
  if (p.gated) y = rounded<T>(y / (1.f + __expf(-y))) * total(row + 8);
  const int64_t outputs = p.gated ? p.features / 2 : p.features;
  static_cast<T*>(p.out)[pair * outputs + blockIdx.y * rows + row] = from_float<T>(y);
}

// The chunks of all experts of a token follow each other.
template <typename T, template <typename> typename Format>
__global__ void __launch_bounds__(kSumWarps * 32, 2) expert_sum_kernel(const ExpertSum p) {
  using Rows = Format<T>;
  __shared__ float partial[kSumWarps][kSkinnyFeatures];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const int64_t pairs = static_cast<int64_t>(blockIdx.x) * p.top_k;
  const int chunks_each = p.k / Rows::kChunk, num_chunks = p.top_k * chunks_each;
  const int feature = blockIdx.y * kSkinnyFeatures + g;
  // Made before the kernel before this one began to work.
  const int own = lane < p.top_k ? static_cast<int>(p.experts[pairs + lane]) : p.num_experts;
  const float own_scale = own < p.num_experts ? p.shares[pairs + lane] : 0.f;
  const int safe = own < p.num_experts ? own : 0;

  Rows now[kUnroll], next[kUnroll];
  auto load = [&](Rows(&w)[kUnroll], int first) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int chunk = first + u * kSumWarps;
      if (chunk >= num_chunks) break;
      const int place = chunk / chunks_each;
      const int64_t expert = __shfl_sync(~0u, safe, place);
      const int64_t row = expert * p.features + feature;
      const int64_t row_bytes = static_cast<int64_t>(chunks_each) * Rows::kChunkBytes;
      const int of_row = chunk - place * chunks_each;
      const char* at = static_cast<const char*>(p.weight) + row * row_bytes + t * 16 +
                       of_row * Rows::kChunkBytes;
      const uint32_t *low = nullptr, *high = nullptr;
      if constexpr (Rows::kIsScaled) {
        const int column = (of_row * Rows::kChunk + t * Rows::kElements) / p.scales.group_size;
        low = scales_of(p.scales, expert, feature, p.features, p.k) + column;
        high = scales_of(p.scales, expert, feature + 8, p.features, p.k) + column;
      }
      w[u].load(at, at + 8 * row_bytes, low, high);
    }
  };
  load(now, warp);
  wait_for_inputs();
  const T* x = static_cast<const T*>(p.x) + pairs * p.k + t * Rows::kElements;
  float sum[2] = {};
  for (int first = warp; first < num_chunks; first += kSumWarps * kUnroll) {
    load(next, first + kSumWarps * kUnroll);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int chunk = first + u * kSumWarps;
      if (chunk >= num_chunks) break;
      float made[4] = {};
      now[u].multiply(made, g == 0 ? x + chunk * Rows::kChunk : nullptr);
      const float scale = __shfl_sync(~0u, own_scale, chunk / chunks_each);
      if (scale == 0.f) continue;  // perhaps of no expert, whose row nobody wrote
      sum[0] += scale * made[0];  // the token is column 0: of lanes with t == 0
      sum[1] += scale * made[2];
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) now[u] = next[u];
  }
  allow_next();
  if (t == 0) {
    partial[warp][g] = sum[0];
    partial[warp][g + 8] = sum[1];
  }
  __syncthreads();
  if (threadIdx.x < kSkinnyFeatures) {
    float total = 0.f;
#pragma unroll
    for (int w = 0; w < kSumWarps; ++w) total += partial[w][threadIdx.x];
    const int64_t at = static_cast<int64_t>(blockIdx.x) * p.features;
    static_cast<T*>(p.out)[at + blockIdx.y * kSkinnyFeatures + threadIdx.x] = from_float<T>(total);
  }
}

template <typename T>
__global__ void __launch_bounds__(256) combine_kernel(const CombineExperts p) {
  using V = Vector<T>;
  const int vectors = p.width / V::kSize;
  const int64_t index = blockIdx.x * 256ll + threadIdx.x;
  wait_for_inputs();
  allow_next();
  if (index >= static_cast<int64_t>(p.tokens) * vectors) return;
  const int64_t token = index / vectors, at = index % vectors;
  float sum[V::kSize] = {};
  for (int i = 0; i < p.top_k; ++i) {
    const int64_t pair = token * p.top_k + i;
    const float scale = p.weights[pair];
    if (scale == 0.f) continue;  // perhaps of no expert, whose row nobody wrote
    const V x = static_cast<const V*>(p.x)[pair * vectors + at];
#pragma unroll
    for (int e = 0; e < V::kSize; ++e) sum[e] += scale * to_float(x.x[e]);
  }
  V y;
#pragma unroll
  for (int e = 0; e < V::kSize; ++e) y.x[e] = from_float<T>(sum[e]);
  static_cast<V*>(p.out)[index] = y;
}

template <typename T>
cudaError_t launch_linear(const ExpertLinear& p, cudaStream_t stream) {
  const dim3 grid(p.num_pairs, p.features / kSkinnyFeatures);
  auto kernel = p.format == ExpertFormat::kPlain ? expert_kernel<T, PlainExpert>
                : p.format == ExpertFormat::kFp8 ? expert_kernel<T, Fp8Expert>
                                                 : expert_kernel<T, Int4Expert>;
  return launch_dependent(kernel, grid, kPairWarps * 32, 0, stream, p);
}

template <typename T>
cudaError_t launch_sum(const ExpertSum& p, cudaStream_t stream) {
  const dim3 grid(p.tokens, p.features / kSkinnyFeatures);
  auto kernel = p.format == ExpertFormat::kPlain ? expert_sum_kernel<T, PlainExpert>
                : p.format == ExpertFormat::kFp8 ? expert_sum_kernel<T, Fp8Expert>
                                                 : expert_sum_kernel<T, Int4Expert>;
  return launch_dependent(kernel, grid, kSumWarps * 32, 0, stream, p);
}

template <typename T>
cudaError_t launch_combine(const CombineExperts& p, cudaStream_t stream) {
  const int64_t total = static_cast<int64_t>(p.tokens) * (p.width / Vector<T>::kSize);
  return launch_dependent(combine_kernel<T>, (total + 255) / 256, 256, 0, stream, p);
}

}  // namespace

cudaError_t expert_linear(const ExpertLinear& p, bool bf16, cudaStream_t stream) {
  if (p.num_pairs == 0) return cudaSuccess;
  return bf16 ? launch_linear<__nv_bfloat16>(p, stream) : launch_linear<__half>(p, stream);
}

cudaError_t expert_sum(const ExpertSum& p, bool bf16, cudaStream_t stream) {
  if (p.tokens == 0) return cudaSuccess;
  return bf16 ? launch_sum<__nv_bfloat16>(p, stream) : launch_sum<__half>(p, stream);
}

cudaError_t combine_experts(const CombineExperts& p, bool bf16, cudaStream_t stream) {
  if (p.tokens == 0) return cudaSuccess;
  return bf16 ? launch_combine<__nv_bfloat16>(p, stream) : launch_combine<__half>(p, stream);
}

}  // namespace sluice
