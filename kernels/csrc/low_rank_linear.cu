// Low-rank adapters of few tokens (Punica, arXiv:2310.18547) at the price of one small kernel a layer:
// shrinking costs a few CTAs beside those of the layer's own product, which read the same x.

#include "dependent_launch.cuh"
#include "low_rank_linear.cuh"
#include "vector.cuh"
#include "weight_rows.cuh"

namespace sluice {
namespace {

constexpr int kRows = 16;  // features, or ranks, of a CTA
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kUnroll = 2;  // chunks under way per warp

// The CTAs that shrink come first. kGroups: of 8 tokens.
template <typename T, int kGroups>
__global__ void __launch_bounds__(kThreads, 2) low_rank_linear_kernel(const LowRankLinear p) {
  __shared__ float partial[kWarps][kRows][kGroups * 8 + 1];
  const LowRank& a = p.adapters;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const int columns = a.parts * a.max_rank, ctas_each = columns / kRows;
  const bool shrinks = blockIdx.x < a.num_tiles * ctas_each;
  const int tile = shrinks ? blockIdx.x / ctas_each : 0;
  const int first_row =
      (shrinks ? blockIdx.x % ctas_each : blockIdx.x - a.num_tiles * ctas_each) * kRows;
  const T* rows = static_cast<const T*>(p.weight) + static_cast<int64_t>(first_row) * p.k;
  if (shrinks) {
    // The host sends the tables ahead of all kernels of a step.
    const int slot = a.slots[tile];
    const int part = first_row / a.max_rank;
    const bool idle = slot < 0 || first_row % a.max_rank >= a.ranks[slot * a.rank_stride + part];
    if (idle) {
      wait_for_inputs();
      return;
    }
    rows = static_cast<const T*>(a.down) + (static_cast<int64_t>(slot) * columns + first_row) * p.k;
  }
  auto token_at = [&](int place) {
    if (shrinks) return a.tokens[tile * kLowRankTokens + place];
    return place < p.tokens ? place : -1;
  };

  const T* low_row = rows + static_cast<int64_t>(g) * p.k + t * 8;
  const T* high_row = low_row + static_cast<int64_t>(8) * p.k;
  const int num_chunks = p.k / kWeightChunk;
  WeightRows now[kUnroll], next[kUnroll];
  auto load = [&](WeightRows(&w)[kUnroll], int first) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int at = (first + u * kWarps) * kWeightChunk;
      if (at < p.k) w[u].load(low_row + at, high_row + at);
    }
  };
  load(now, warp);
  const T* x[kGroups];
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const int token = token_at(group * 8 + g);
    x[group] = token < 0 ? nullptr : static_cast<const T*>(p.x) + token * p.x_stride + t * 8;
  }
  wait_for_inputs();
  float sum[kGroups][4] = {};
  for (int first = warp; first < num_chunks; first += kWarps * kUnroll) {
    load(next, first + kWarps * kUnroll);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int at = (first + u * kWarps) * kWeightChunk;
      if (at >= p.k) break;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        now[u].multiply(sum[group], x[group] ? x[group] + at : nullptr);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) now[u] = next[u];
  }
  allow_next();

#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      partial[warp][i / 2 * 8 + g][group * 8 + t * 2 + i % 2] = sum[group][i];
    }
  }
  __syncthreads();
  const int row = threadIdx.x % kRows, place = threadIdx.x / kRows;
  const int token = place < kGroups * 8 ? token_at(place) : -1;
  if (token < 0) return;
  float total = 0.f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += partial[w][row][place];
  const int at = first_row + row;
  if (shrinks) {
    static_cast<T*>(p.low)[static_cast<int64_t>(token) * columns + at] = from_float<T>(total);
  } else {
    if (p.bias) total += to_float(static_cast<const T*>(p.bias)[at]);
    static_cast<T*>(p.out)[static_cast<int64_t>(token) * p.features + at] = from_float<T>(total);
  }
}

// What an adapter's matrix `up` holds for one feature, and multiplies.
template <typename T>
struct UpRow {
  static constexpr int kVectors = kMaxLowRank / Vector<T>::kSize;
  Vector<T> weights[kVectors];
  int num_vectors = 0;
  int first = 0;  // column of low

  __device__ __forceinline__ void load(const LowRank& a, int slot, int feature, int features) {
    int part = 0;
    while (feature >= a.ends[part + 1]) ++part;
    const int rank = a.ranks[slot * a.rank_stride + part];
    num_vectors = (rank + 15) / 16 * 16 / Vector<T>::kSize;
    first = part * a.max_rank;
    const int64_t row = (static_cast<int64_t>(slot) * features + feature) * a.max_rank;
    const auto* from = reinterpret_cast<const Vector<T>*>(static_cast<const T*>(a.up) + row);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (i < num_vectors) weights[i] = from[i];
    }
  }

  // low: of a token
  __device__ __forceinline__ float times(const T* low) const {
    const auto* from = reinterpret_cast<const Vector<T>*>(low + first);
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (i >= num_vectors) break;
      const Vector<T> x = from[i];
#pragma unroll
      for (int e = 0; e < Vector<T>::kSize; ++e) sum += to_float(x.x[e]) * to_float(weights[i].x[e]);
    }
    return sum;
  }
};

template <typename T>
__device__ __forceinline__ T gated(float gate, float up) {
  gate = rounded<T>(gate);
  return from_float<T>(rounded<T>(gate / (1.f + __expf(-gate))) * rounded<T>(up));
}

// A thread makes one output of all tokens of a tile; gated, the last blockIdx.y those of no tile.
template <typename T, bool kGated>
__global__ void __launch_bounds__(kThreads) expand_kernel(const ExpandLowRank p) {
  __shared__ unsigned in_tiles;
  const LowRank& a = p.adapters;
  const int outputs = kGated ? p.features / 2 : p.features;
  const int feature = blockIdx.x * kThreads + threadIdx.x;
  const int tile = blockIdx.y;
  const bool is_tile = tile < a.num_tiles;
  const int slot = is_tile ? a.slots[tile] : -1;
  UpRow<T> row, other;
  if (slot >= 0 && feature < outputs) {
    row.load(a, slot, feature, p.features);
    if constexpr (kGated) other.load(a, slot, feature + outputs, p.features);
  }
  if (!is_tile) {
    if (threadIdx.x == 0) in_tiles = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < a.num_tiles * kLowRankTokens; i += kThreads) {
      if (a.tokens[i] >= 0) atomicOr(&in_tiles, 1u << a.tokens[i]);
    }
    __syncthreads();
  }
  wait_for_inputs();
  allow_next();
  if (feature >= outputs) return;
  auto made = [&](int token, int at) {
    return to_float(static_cast<const T*>(p.made)[static_cast<int64_t>(token) * p.features + at]);
  };
  T* out = static_cast<T*>(p.out) + feature;
  if (!is_tile) {
    for (int token = 0; token < p.tokens; ++token) {
      if (in_tiles >> token & 1) continue;
      out[static_cast<int64_t>(token) * outputs] =
          gated<T>(made(token, feature), made(token, feature + outputs));
    }
    return;
  }
  if (slot < 0 || (!kGated && row.num_vectors == 0)) return;
  const int columns = a.parts * a.max_rank;
  for (int place = 0; place < kLowRankTokens; ++place) {
    const int token = a.tokens[tile * kLowRankTokens + place];
    if (token < 0) return;
    const T* low = static_cast<const T*>(p.low) + static_cast<int64_t>(token) * columns;
    const float sum = made(token, feature) + row.times(low);
    T& to = out[static_cast<int64_t>(token) * outputs];
    if constexpr (kGated) {
      to = gated<T>(sum, made(token, feature + outputs) + other.times(low));
    } else {
      to = from_float<T>(sum);
    }
  }
}

template <typename T>
cudaError_t launch_linear(const LowRankLinear& p, cudaStream_t stream) {
  const LowRank& a = p.adapters;
  const int ctas = a.num_tiles * a.parts * a.max_rank / kRows + p.features / kRows;
  auto kernel = p.tokens <= 8 ? low_rank_linear_kernel<T, 1> : low_rank_linear_kernel<T, 2>;
  return launch_dependent(kernel, ctas, kThreads, 0, stream, p);
}

template <typename T>
cudaError_t launch_expand(const ExpandLowRank& p, cudaStream_t stream) {
  const int outputs = p.gated ? p.features / 2 : p.features;
  const dim3 grid((outputs + kThreads - 1) / kThreads, p.adapters.num_tiles + (p.gated ? 1 : 0));
  auto kernel = p.gated ? expand_kernel<T, true> : expand_kernel<T, false>;
  return launch_dependent(kernel, grid, kThreads, 0, stream, p);
}

}  // namespace

cudaError_t low_rank_linear(const LowRankLinear& p, bool bf16, cudaStream_t stream) {
  if (p.tokens == 0) return cudaSuccess;
  return bf16 ? launch_linear<__nv_bfloat16>(p, stream) : launch_linear<__half>(p, stream);
}

cudaError_t expand_low_rank(const ExpandLowRank& p, bool bf16, cudaStream_t stream) {
  const bool idle = p.adapters.num_tiles == 0 && !p.gated;
  if (p.tokens == 0 || idle) return cudaSuccess;
  return bf16 ? launch_expand<__nv_bfloat16>(p, stream) : launch_expand<__half>(p, stream);
}

}  // namespace sluice
