// Low-rank adapters of few tokens (Punica, arXiv:2310.18547) in the launch of the layer's own
// product, that of skinny_linear.cu.
//
// The first CTAs shrink x to the adapters' ranks, which takes as long as 16 features do. Those
// beside them have made their features when the first ones end, and add what the ranks expand to;
// later ones expand the ranks while their weights are under way. CTAs are dispatched in the order
// of their indices, so whoever waits has those it waits for running or behind it.

#include "dependent_launch.cuh"
#include "low_rank_linear.cuh"
#include "skinny_output.cuh"
#include "vector.cuh"
#include "weight_rows.cuh"

namespace sluice {
namespace {

constexpr int kRows = kSkinnyFeatures;  // features, or ranks, of a CTA
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;  // a row and a token each, in the end
constexpr int kUnroll = 2;             // chunks under way per warp
static_assert(kThreads == kRows * kLowRankTokens);

__device__ __forceinline__ int read_now(const int* at) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

// The row of a feature in an adapter's matrix `up`, and where its ranks are.
template <typename T>
struct UpRow {
  const T* weights;
  int first_column, num_ranks;

  __device__ __forceinline__ UpRow(const LowRank& a, int slot, int feature, int features) {
    int part = 0;
    while (feature >= a.ends[part + 1]) ++part;
    first_column = part * a.max_rank;
    num_ranks = (a.ranks[slot * a.rank_stride + part] + 15) / 16 * 16;
    weights = static_cast<const T*>(a.up) +
              (static_cast<int64_t>(slot) * features + feature) * a.max_rank;
  }

  // low: of a token; other CTAs wrote it.
  __device__ __forceinline__ float times(const T* low) const {
    constexpr int kSize = Vector<T>::kSize;
    float sum = 0.f;
    for (int i = 0; i < num_ranks; i += kSize) {
      const uint4 words = __ldcg(reinterpret_cast<const uint4*>(low + first_column + i));
      const auto x = reinterpret_cast<const Vector<T>&>(words);
      const auto w = *reinterpret_cast<const Vector<T>*>(weights + i);
#pragma unroll
      for (int e = 0; e < kSize; ++e) sum += to_float(x.x[e]) * to_float(w.x[e]);
    }
    return sum;
  }
};

// kGroups: of 8 tokens.
template <typename T, int kGroups>
__global__ void __launch_bounds__(kThreads, 2) low_rank_linear_kernel(const LowRankLinear p) {
  __shared__ float partial[kWarps][kRows][kGroups * 8 + 1];
  __shared__ int slot_of[kLowRankTokens];
  __shared__ bool ranks_were_made;
  const LowRank& a = p.adapters;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const int columns = a.parts * a.max_rank, ctas_each = columns / kRows;
  const int num_shrinking = a.num_tiles * ctas_each;
  const bool shrinks = blockIdx.x < num_shrinking;
  const int tile = shrinks ? blockIdx.x / ctas_each : 0;
  const int cta = shrinks ? blockIdx.x % ctas_each : blockIdx.x - num_shrinking;
  // The tables were sent ahead of all kernels of the step.
  const int slot = shrinks ? a.slots[tile] : -1;
  if (shrinks) {
    const int part = cta * kRows / a.max_rank, rank = cta * kRows % a.max_rank;
    if (slot < 0 || rank >= a.ranks[slot * a.rank_stride + part]) {
      wait_for_inputs();  // the launch before is done with the counters
      if (threadIdx.x == 0) arrive(p.counters);
      return;
    }
  }
  auto row_index = [&](int row) {
    if (shrinks || !p.gated) return cta * kRows + row;
    return (row < 8 ? 0 : p.features / 2) + cta * 8 + row % 8;
  };
  const T* matrix = static_cast<const T*>(shrinks ? a.down : p.weight);
  if (shrinks) matrix += static_cast<int64_t>(slot) * columns * p.k;
  const T* low_row = matrix + static_cast<int64_t>(row_index(g)) * p.k + t * 8;
  const T* high_row = matrix + static_cast<int64_t>(row_index(g + 8)) * p.k + t * 8;
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

  auto token_at = [&](int place) {
    if (shrinks) return a.tokens[tile * kLowRankTokens + place];
    return place < p.tokens ? place : -1;
  };
  const T* x[kGroups];
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const int token = token_at(group * 8 + g);
    x[group] = token < 0 ? nullptr : static_cast<const T*>(p.x) + token * p.x_stride + t * 8;
  }
  const int row = threadIdx.x % kRows, place = threadIdx.x / kRows;
  if (!shrinks) {
    if (threadIdx.x < kLowRankTokens) slot_of[threadIdx.x] = -1;
    __syncthreads();
    for (int i = threadIdx.x; i < a.num_tiles * kLowRankTokens; i += kThreads) {
      if (a.tokens[i] >= 0) slot_of[a.tokens[i]] = a.slots[i / kLowRankTokens];
    }
    __syncthreads();
    if (slot_of[place] >= 0) {
      prefetch_l2(UpRow<T>(a, slot_of[place], row_index(row), p.features).weights);
    }
  }
  wait_for_inputs();

  auto wait_for_ranks = [&] {
    while (read_now(p.counters) < num_shrinking) {
    }
  };
  auto leave = [&] {  // the last to do so leaves the counters as they were
    if (arrive(p.counters + 1) != p.features / kRows - 1) return;
    wait_for_ranks();
    p.counters[0] = 0;
    p.counters[1] = 0;
  };
  const int own = shrinks ? -1 : slot_of[place], feature = row_index(row);
  auto expanded = [&] {
    if (own < 0) return 0.f;
    const T* low = static_cast<const T*>(p.low) + static_cast<int64_t>(place) * columns;
    return UpRow<T>(a, own, feature, p.features).times(low);
  };
  float added = 0.f;
  if (!shrinks) {
    if (threadIdx.x == 0) {
      ranks_were_made = read_now(p.counters) == num_shrinking;
      if (ranks_were_made) leave();
    }
    __syncthreads();
    if (ranks_were_made) added = expanded();
  }

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

  keep_skinny(partial[warp], sum, g, t);
  __syncthreads();
  const int token = place < kGroups * 8 ? token_at(place) : -1;
  float total = 0.f;
  if (token >= 0) {
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += partial[w][row][place];
  }
  if (shrinks) {
    const int64_t at = static_cast<int64_t>(token) * columns + cta * kRows + row;
    if (token >= 0) static_cast<T*>(p.low)[at] = from_float<T>(total);
    __syncthreads();
    if (threadIdx.x == 0) arrive(p.counters);
    return;
  }

  if (!ranks_were_made) {
    if (__syncthreads_or(own >= 0)) {
      if (threadIdx.x == 0) wait_for_ranks();
      __syncthreads();
    }
    added = expanded();
  }
  total += added;
  if (p.bias && token >= 0) total += to_float(static_cast<const T*>(p.bias)[feature]);
  total = rounded<T>(total);
  const float up = __shfl_xor_sync(~0u, total, 8);  // of the gate in the same place
  T* out = static_cast<T*>(p.out);
  if (token >= 0 && !p.gated) {
    out[static_cast<int64_t>(token) * p.features + feature] = from_float<T>(total);
  } else if (token >= 0 && row < 8) {
    const float silu = rounded<T>(total / (1.f + __expf(-total)));
    out[static_cast<int64_t>(token) * (p.features / 2) + feature] = from_float<T>(silu * up);
  }
  if (threadIdx.x == 0 && !ranks_were_made) leave();
}

template <typename T>
cudaError_t launch(const LowRankLinear& p, cudaStream_t stream) {
  const LowRank& a = p.adapters;
  const int ctas = a.num_tiles * a.parts * a.max_rank / kRows + p.features / kRows;
  auto kernel = p.tokens <= 8 ? low_rank_linear_kernel<T, 1> : low_rank_linear_kernel<T, 2>;
  return launch_dependent(kernel, ctas, kThreads, 0, stream, p);
}

}  // namespace

cudaError_t low_rank_linear(const LowRankLinear& p, bool bf16, cudaStream_t stream) {
  if (p.tokens == 0) return cudaSuccess;
  return bf16 ? launch<__nv_bfloat16>(p, stream) : launch<__half>(p, stream);
}

}  // namespace sluice
