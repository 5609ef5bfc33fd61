// The way of tokens to experts: a warp scores and chooses for one token; one CTA sorts all pairs.

#include <climits>

#include "common/dependent_launch.cuh"
#include "common/reduce.cuh"
#include "common/vector.cuh"
#include "moe/route_experts.cuh"

namespace sluice {
namespace {

constexpr int kRouteWarps = 8;
constexpr int kGroupThreads = 1024;
constexpr unsigned kAll = ~0u;

// An integer in the order of floats.
__device__ __forceinline__ unsigned ordered(float x) {
  const unsigned bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The index of the warp's largest value, the lowest of equal ones. `best` is the largest of a lane,
// `index` its index; not a number is never chosen where there is a number.
__device__ __forceinline__ int warp_argmax(float best, int index) {
  const unsigned key = ordered(best);
  const bool is_top = key == __reduce_max_sync(kAll, key);
  return static_cast<int>(__reduce_min_sync(kAll, is_top ? index : INT_MAX));
}

// Leaves -inf in place of the scores outside of the best groups. A group counts its best expert,
// or, with a bias, its two best.
template <int kPer>
__device__ __forceinline__ void keep_best_groups(const RouteExperts& p, float (&wanted)[kPer],
                                                 float* shared) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < kPer; ++j) shared[j * 32 + lane] = wanted[j];
  __syncwarp();
  const int size = p.num_experts / p.num_groups;
  float score = -INFINITY;
  if (lane < p.num_groups) {
    float first = -INFINITY, second = -INFINITY;
    for (int i = 0; i < size; ++i) {
      const float x = shared[lane * size + i];
      second = fmaxf(second, fminf(first, x));
      first = fmaxf(first, x);
    }
    score = p.bias ? first + second : first;
  }
  unsigned kept = 0;
  for (int i = 0; i < p.top_k_groups; ++i) {
    const int group = warp_argmax(score, lane);
    kept |= 1u << group;
    if (lane == group) score = -INFINITY;
  }
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    const int expert = j * 32 + lane;
    if (expert >= p.num_experts || !(kept >> (expert / size) & 1)) wanted[j] = -INFINITY;
  }
}

// kPer experts a lane: expert j * 32 + lane.
template <typename T, int kPer>
__global__ void __launch_bounds__(kRouteWarps * 32) route_kernel(const RouteExperts p) {
  __shared__ float shared[kRouteWarps][kPer * 32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float bias[kPer];
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    const int expert = j * 32 + lane;
    bias[j] = p.bias && expert < p.num_experts ? p.bias[expert] : 0.f;
  }
  wait_for_inputs();
  allow_next();
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kRouteWarps + warp;
  if (token >= p.tokens) return;

  const T* logits = static_cast<const T*>(p.logits) + token * p.num_experts;
  float score[kPer], wanted[kPer];
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    const int expert = j * 32 + lane;
    score[j] = expert < p.num_experts ? to_float(logits[expert]) : -INFINITY;
  }
  if (p.sigmoid) {
#pragma unroll
    for (int j = 0; j < kPer; ++j) score[j] = 1.f / (1.f + __expf(-score[j]));
  } else {
    float top = score[0];
#pragma unroll
    for (int j = 1; j < kPer; ++j) top = fmaxf(top, score[j]);
    top = warp_max(top);
    float sum = 0.f;
#pragma unroll
    for (int j = 0; j < kPer; ++j) sum += score[j] = __expf(score[j] - top);
    sum = warp_sum(sum);
#pragma unroll
    for (int j = 0; j < kPer; ++j) score[j] /= sum;
  }
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    wanted[j] = j * 32 + lane < p.num_experts ? score[j] + bias[j] : -INFINITY;
  }
  if (p.num_groups > 1) keep_best_groups(p, wanted, shared[warp]);

  int chosen = 0;  // of place `lane`
  float weight = 0.f;
  for (int place = 0; place < p.top_k; ++place) {
    float best = -INFINITY;
    int index = lane < p.num_experts ? lane : 0;
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      if (wanted[j] > best) {
        best = wanted[j];
        index = j * 32 + lane;
      }
    }
    const int expert = warp_argmax(best, index);
    float found = 0.f;
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      if (j * 32 + lane == expert) {
        found = score[j];
        wanted[j] = -INFINITY;
      }
    }
    found = __shfl_sync(kAll, found, expert % 32);
    if (lane == place) {
      chosen = expert;
      weight = found;
    }
  }
  if (p.renormalize) weight /= warp_sum(weight) + 1e-20f;
  if (lane < p.top_k) {
    p.experts[token * p.top_k + lane] = chosen;
    p.weights[token * p.top_k + lane] = weight * p.scale;
  }
}

// counts[e]: what comes before e, and all of it at the end. By one warp.
__device__ __forceinline__ void add_up(int* counts, int size) {
  const int lane = threadIdx.x;
  int before = 0;
  for (int first = 0; first <= size; first += 32) {
    const int own = first + lane < size ? counts[first + lane] : 0;
    int sum = own;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(kAll, sum, d);
      if (lane >= d) sum += other;
    }
    if (first + lane <= size) counts[first + lane] = before + sum - own;
    before += __shfl_sync(kAll, sum, 31);
  }
}

__global__ void __launch_bounds__(kGroupThreads) group_kernel(const GroupPairs p) {
  __shared__ int starts[kMaxRoutedExperts + 2];  // of the experts' pairs, in order
  __shared__ int first_tiles[kMaxRoutedExperts + 1];
  __shared__ int next[kMaxRoutedExperts + 1];
  const int thread = threadIdx.x, experts = p.num_experts;
  for (int i = thread; i <= experts + 1; i += kGroupThreads) starts[i] = 0;
  __syncthreads();
  wait_for_inputs();
  allow_next();
  for (int i = thread; i < p.num_pairs; i += kGroupThreads) {
    atomicAdd(&starts[static_cast<int>(p.experts[i])], 1);
  }
  __syncthreads();
  for (int i = thread; i < experts; i += kGroupThreads) {
    first_tiles[i] = (starts[i] + p.rows - 1) / p.rows;
  }
  __syncthreads();
  if (thread < 32) {
    add_up(starts, experts + 1);
    add_up(first_tiles, experts);
  }
  __syncthreads();
  for (int i = thread; i <= experts; i += kGroupThreads) next[i] = starts[i];
  const int lane = thread % 32;
  for (int expert = thread / 32; expert < experts; expert += kGroupThreads / 32) {
    const int first = first_tiles[expert], end = first_tiles[expert + 1];
    for (int tile = first + lane; tile < end; tile += 32) {
      p.tiles[tile] = expert;
      p.tiles[p.max_tiles + tile] = starts[expert] + (tile - first) * p.rows;
      p.tiles[2 * p.max_tiles + tile] = starts[expert + 1];
    }
  }
  for (int tile = first_tiles[experts] + thread; tile < p.max_tiles; tile += kGroupThreads) {
    p.tiles[tile] = experts;
  }
  __syncthreads();
  for (int i = thread; i < p.num_pairs; i += kGroupThreads) {
    p.order[atomicAdd(&next[static_cast<int>(p.experts[i])], 1)] = i;
  }
}

template <typename T>
cudaError_t route_typed(const RouteExperts& p, cudaStream_t stream) {
  const int blocks = (p.tokens + kRouteWarps - 1) / kRouteWarps;
  auto run = [&](auto kernel) {
    return launch_dependent(kernel, blocks, kRouteWarps * 32, 0, stream, p);
  };
  if (p.num_experts <= 64) return run(route_kernel<T, 2>);
  if (p.num_experts <= 128) return run(route_kernel<T, 4>);
  if (p.num_experts <= 256) return run(route_kernel<T, 8>);
  return run(route_kernel<T, kMaxRoutedExperts / 32>);
}

}  // namespace

cudaError_t route_experts(const RouteExperts& route, Dtype dtype, cudaStream_t stream) {
  if (route.tokens == 0) return cudaSuccess;
  return with_type(dtype, [&](auto type) {
    return route_typed<typename decltype(type)::type>(route, stream);
  });
}

cudaError_t group_pairs(const GroupPairs& pairs, cudaStream_t stream) {
  return launch_dependent(group_kernel, 1, kGroupThreads, 0, stream, pairs);
}

}  // namespace sluice
