// Log-probabilities of a token and of the likeliest ones: one CTA a row, two passes over it.
//
// The first pass gives each thread the best of the tokens it sees. The k-th best of these is a
// bound that at least k tokens reach, and few more; the second pass collects them, and they are
// sorted. Only where too many tokens are equal the likeliest are found one after the other.

#include "sampling/logits_row.cuh"
#include "sampling/logprobs.cuh"

namespace sluice {
namespace {

constexpr int kThreads = kRowThreads;
constexpr int kMaxCandidates = 4096;
static_assert(kMaxTopLogprobs <= kThreads && kMaxTopLogprobs <= kMaxCandidates);

struct Shared {
  uint64_t candidates[kMaxCandidates];
  uint64_t keys[kRowWarps];
  double sums[kRowWarps];
  int num_candidates;
};

// Orders as the floats do; the zeros are equal.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x + 0.f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float from_ordered(uint32_t x) {
  return __uint_as_float(x & 0x80000000u ? x & 0x7FFFFFFFu : ~x);
}

// The smaller, the likelier; of equals the lowest id is the smallest.
__device__ __forceinline__ uint64_t key_of(float logit, int id) {
  return static_cast<uint64_t>(~ordered(logit)) << 32 | static_cast<uint32_t>(id);
}

__device__ __forceinline__ float logit_of(uint64_t key) {
  return from_ordered(~static_cast<uint32_t>(key >> 32));
}

__device__ uint64_t block_min(uint64_t key, Shared& sm) {
  auto reduce = [&] {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) key = min(key, __shfl_xor_sync(~0u, key, d));
  };
  reduce();
  __syncthreads();
  if (threadIdx.x % 32 == 0) sm.keys[threadIdx.x / 32] = key;
  __syncthreads();
  key = sm.keys[threadIdx.x % 32];
  reduce();
  return key;
}

// The largest value that at least `count` of the threads' values reach.
__device__ uint32_t nth_largest(uint32_t value, int count) {
  uint32_t found = 0;
  for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
    if (__syncthreads_count(value >= (found | bit)) >= count) found |= bit;
  }
  return found;
}

__device__ void sort_candidates(int num, Shared& sm) {
  int size = 2;
  while (size < num) size *= 2;
  for (int i = num + threadIdx.x; i < size; i += kThreads) sm.candidates[i] = ~0ull;
  __syncthreads();
  for (int width = 2; width <= size; width *= 2) {  // bitonic
    for (int stride = width / 2; stride > 0; stride /= 2) {
      for (int i = threadIdx.x; i < size / 2; i += kThreads) {
        const int a = i / stride * 2 * stride + i % stride, b = a + stride;
        const uint64_t x = sm.candidates[a], y = sm.candidates[b];
        if ((x > y) == ((a & width) == 0)) sm.candidates[a] = y, sm.candidates[b] = x;
      }
      __syncthreads();
    }
  }
}

template <typename T>
__device__ void find_one_by_one(const LogitsRow<T>& row, int num_top, Shared& sm) {
  uint64_t last = 0;  // the key of no token: it would have to be a NaN
  for (int k = 0; k < num_top; ++k) {
    uint64_t best = ~0ull;
    row.for_each([&](int id, float logit) {
      const uint64_t key = key_of(logit, id);
      if (key > last) best = min(best, key);
    });
    last = block_min(best, sm);
    if (threadIdx.x == 0) sm.candidates[k] = last;
  }
  __syncthreads();
}

template <typename T>
__global__ void __launch_bounds__(kThreads) logprobs_kernel(const TokenLogprobs w) {
  __shared__ Shared sm;
  const int64_t i = blockIdx.x;
  const LogitsRow<T> row = {static_cast<const T*>(w.logits) + i * w.logits_stride, w.vocab};

  uint32_t own_best = 0;
  row.for_each([&](int, float logit) { own_best = max(own_best, ordered(logit)); });
  const float best = logit_of(block_min(static_cast<uint64_t>(~own_best) << 32, sm));
  const uint32_t bound = nth_largest(own_best, max(w.num_top, 1));
  if (threadIdx.x == 0) sm.num_candidates = 0;
  __syncthreads();

  const float logit = to_float(row.logits[w.token_ids[i]]);
  double mass = 0, likelier = 0;
  row.for_each([&](int id, float other) {
    mass += expf(other - best);
    likelier += other > logit;
    if (w.num_top > 0 && ordered(other) >= bound) {
      const int at = atomicAdd(&sm.num_candidates, 1);
      if (at < kMaxCandidates) sm.candidates[at] = key_of(other, id);
    }
  });
  const double log_mass = log(block_sum(mass, sm.sums));
  const double num_likelier = block_sum(likelier, sm.sums);
  auto logprob = [&](float x) { return static_cast<float>(x - best - log_mass); };
  if (threadIdx.x == 0) {
    w.logprobs[i] = logprob(logit);
    w.ranks[i] = static_cast<int64_t>(num_likelier) + 1;
  }
  if (w.num_top == 0) return;
  if (sm.num_candidates <= kMaxCandidates) {
    sort_candidates(sm.num_candidates, sm);
  } else {
    find_one_by_one(row, w.num_top, sm);
  }
  for (int k = threadIdx.x; k < w.num_top; k += kThreads) {
    w.top_ids[i * w.num_top + k] = static_cast<uint32_t>(sm.candidates[k]);
    w.top_logprobs[i * w.num_top + k] = logprob(logit_of(sm.candidates[k]));
  }
}

}  // namespace

cudaError_t token_logprobs(const TokenLogprobs& wanted, Dtype dtype, cudaStream_t stream) {
  if (wanted.num_rows == 0) return cudaSuccess;
  return with_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    logprobs_kernel<T><<<wanted.num_rows, kThreads, 0, stream>>>(wanted);
    return cudaGetLastError();
  });
}

}  // namespace sluice
