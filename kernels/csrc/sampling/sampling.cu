// Sampling without a sort of the vocabulary: one CTA a row.
//
// Order tokens by falling score (logit - best) / temperature, equal scores by falling id: top-k and
// top-p both keep a beginning of that order. A histogram over the scores tells in which bin the
// beginning ends. If all tokens up to there are few enough, as in nearly every case, they are
// collected in shared memory, sorted, and cut exactly. Where the distribution is flat, only those
// of the last bin are. If even they are too many, the end is found by bisection over the bits of
// the score (and, among equal scores, over the id), one pass over the logits a step. Tokens so
// unlikely that no noise can lift them over the best one (26 nats) are never candidates.
//
// Every sum is taken in an order that depends on the row alone, so the draw depends neither on the
// batch nor on the run. This file is compiled without fast math: its logarithms decide near-ties.

#include "common/dependent_launch.cuh"
#include "sampling/logits_row.cuh"
#include "sampling/philox.cuh"
#include "sampling/sampling.cuh"

namespace sluice {
namespace {

constexpr int kThreads = kRowThreads;
constexpr int kWarps = kRowWarps;
constexpr int kBinsPerNat = 64;
constexpr int kBins = 26 * kBinsPerNat;  // multiple of 32
constexpr float kHopeless = 25.8f;       // the range of the noise: GUMBEL_MAX - GUMBEL_MIN
constexpr int kMaxCandidates = 4096;
constexpr float kMassUnit = 1 << 14;  // fixed-point mass of a bin, relative to its best token
constexpr uint64_t kNoCandidate = ~0ull;
static_assert(kBins % 32 == 0 && kHopeless * kBinsPerNat < kBins);

struct Histogram {
  uint32_t count[kBins];
  uint32_t mass[kBins];  // rounded down
};

struct Shared {
  union {
    Histogram bins;
    uint64_t candidates[kMaxCandidates];  // distance bits in the high word, ~id in the low one
  };
  double sums[kWarps];
  float values[kWarps];
  int ids[kWarps];
  int last_bin, num_in_bins, num_candidates;
};

struct Best {
  float value;
  int id;
};

__device__ __forceinline__ Best better(Best a, Best b) {
  const bool second = b.value > a.value || (b.value == a.value && b.id < a.id);
  return second ? b : a;
}

__device__ Best block_best(Best best, Shared& sm) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  auto reduce = [&] {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
      best = better(best, {__shfl_xor_sync(~0u, best.value, d), __shfl_xor_sync(~0u, best.id, d)});
    }
  };
  reduce();
  __syncthreads();
  if (lane == 0) {
    sm.values[warp] = best.value;
    sm.ids[warp] = best.id;
  }
  __syncthreads();
  best = {sm.values[lane], sm.ids[lane]};
  reduce();
  return best;
}

// One row of logits and how it is sampled.
template <typename T>
struct Row : LogitsRow<T> {
  float best;
  float temperature;

  // How far a token trails the best one: 0 or more, so that its bits order as it does.
  __device__ __forceinline__ float distance(float logit) const {
    return (best - logit) / temperature;
  }
};

__device__ __forceinline__ int bin_of(float distance) {
  return static_cast<int>(fminf(distance * kBinsPerNat, static_cast<float>(kBins)));
}

// What stays of a row: all tokens nearer than `distance`, and those at it with an id of at least
// `first_id`; but none farther than `limit`.
struct Cut {
  float distance;
  int first_id;
  float limit;

  __device__ __forceinline__ bool keeps(float d, int id) const {
    return d <= limit && (d < distance || (d == distance && id >= first_id));
  }
};

// Fills the histogram; the mass of the whole row, relative to the best token.
template <typename T>
__device__ double count_bins(const Row<T>& row, Shared& sm) {
  __syncthreads();
  for (int i = threadIdx.x; i < kBins; i += kThreads) sm.bins.count[i] = sm.bins.mass[i] = 0;
  __syncthreads();
  double total = 0;
  row.for_each([&](int, float logit) {
    const float distance = row.distance(logit);
    total += expf(-distance);
    const int bin = bin_of(distance);
    if (bin < kBins) {
      const float start = static_cast<float>(bin) / kBinsPerNat;
      atomicAdd(&sm.bins.count[bin], 1);
      atomicAdd(&sm.bins.mass[bin], static_cast<uint32_t>(expf(start - distance) * kMassUnit));
    }
  });
  return block_sum(total, sm.sums);
}

// The bin in which the tokens reach `count` or, if that is 0, at least `mass`; the last one if they
// never do. Written to shared memory with the number of tokens up to its end. One warp.
__device__ void find_last_bin(Shared& sm, int count, double mass) {
  constexpr int kOwn = kBins / 32;
  const int lane = threadIdx.x % 32;
  auto mass_of = [&](int bin) {
    return sm.bins.mass[bin] / kMassUnit * expf(-static_cast<float>(bin) / kBinsPerNat);
  };
  int own_count = 0;
  double own_mass = 0;
  for (int i = lane * kOwn; i < (lane + 1) * kOwn; ++i) {
    own_count += sm.bins.count[i];
    own_mass += mass_of(i);
  }
  int count_before = own_count;
  double mass_before = own_mass;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int c = __shfl_up_sync(~0u, count_before, d);
    const double m = __shfl_up_sync(~0u, mass_before, d);
    if (lane >= d) count_before += c, mass_before += m;
  }
  count_before -= own_count;
  mass_before -= own_mass;
  int last = kBins - 1, reached = count_before + own_count;
  bool found = lane == 31;  // the last resort
  for (int i = lane * kOwn; i < (lane + 1) * kOwn; ++i) {
    count_before += sm.bins.count[i];
    mass_before += mass_of(i);
    if (count > 0 ? count_before >= count : mass_before >= mass) {
      last = i, reached = count_before, found = true;
      break;
    }
  }
  const int first_lane = __ffs(__ballot_sync(~0u, found)) - 1;
  if (lane == first_lane) {
    sm.last_bin = last;
    sm.num_in_bins = reached;
  }
}

// The tokens whose distance is wanted, sorted: nearest first, of equals the highest id first. Their
// number; if that is more than kMaxCandidates, they are not there.
template <typename T, typename F>
__device__ int collect(const Row<T>& row, Shared& sm, F wanted) {
  __syncthreads();
  if (threadIdx.x == 0) sm.num_candidates = 0;
  __syncthreads();
  row.for_each([&](int id, float logit) {
    const float distance = row.distance(logit);
    if (!wanted(distance)) return;
    const int at = atomicAdd(&sm.num_candidates, 1);
    if (at < kMaxCandidates) {
      sm.candidates[at] = (static_cast<uint64_t>(__float_as_uint(distance)) << 32) |
                          (0xFFFFFFFFu - static_cast<uint32_t>(id));
    }
  });
  __syncthreads();
  const int num = sm.num_candidates;
  if (num > kMaxCandidates) return num;
  int size = 2;
  while (size < num) size *= 2;
  for (int i = num + threadIdx.x; i < size; i += kThreads) sm.candidates[i] = kNoCandidate;
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
  return num;
}

__device__ __forceinline__ float candidate_distance(uint64_t candidate) {
  return __uint_as_float(static_cast<uint32_t>(candidate >> 32));
}

__device__ __forceinline__ int candidate_id(uint64_t candidate) {
  return static_cast<int>(0xFFFFFFFFu - static_cast<uint32_t>(candidate));
}

// How many of the sorted candidates stay: those before which there is less than a share of top_p of
// the mass `total` or, if that is negative, of the candidates' own. There is `mass_before` the
// first.
__device__ int cut_top_p(float top_p, double total, double mass_before, int num, Shared& sm) {
  constexpr int kOwn = kMaxCandidates / kThreads;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  double masses[kOwn], own = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int at = threadIdx.x * kOwn + i;
    masses[i] = at < num ? expf(-candidate_distance(sm.candidates[at])) : 0.;
    own += masses[i];
  }
  double before = own;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const double up = __shfl_up_sync(~0u, before, d);
    if (lane >= d) before += up;
  }
  __syncthreads();
  if (lane == 31) sm.sums[warp] = before;
  __syncthreads();
  double all = 0, earlier = mass_before;
  for (int i = 0; i < kWarps; ++i) {
    if (i == warp) earlier += all;
    all += sm.sums[i];
  }
  before += earlier - own;
  const double target = top_p * (total < 0 ? all : total);
  int kept = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int at = threadIdx.x * kOwn + i;
    if (at < num && (at == 0 || before < target)) kept = at + 1;
    before += masses[i];
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) kept = max(kept, __shfl_xor_sync(~0u, kept, d));
  __syncthreads();
  if (lane == 0) sm.ids[warp] = kept;
  __syncthreads();
  for (int i = 0; i < kWarps; ++i) kept = max(kept, sm.ids[i]);
  return kept;
}

// Where top-k and top-p cut the sorted candidates.
__device__ Cut cut_candidates(const SamplingRow& how, double total, bool limits_k, int num,
                              Shared& sm) {
  if (limits_k && how.top_k < num) {
    const uint32_t kth = sm.candidates[how.top_k - 1] >> 32;
    int own = 0;
    for (int i = threadIdx.x; i < num; i += kThreads) own += sm.candidates[i] >> 32 <= kth;
    num = static_cast<int>(block_sum(own, sm.sums));  // ties with the k-th stay
  }
  Cut cut = {candidate_distance(sm.candidates[num - 1]), 0, 0.f};
  if (!(how.top_p < 1.f)) return cut;
  const int kept = cut_top_p(how.top_p, limits_k ? -1. : total, 0., num, sm);
  cut.distance = candidate_distance(sm.candidates[kept - 1]);
  cut.first_id = candidate_id(sm.candidates[kept - 1]);
  return cut;
}

template <typename T, typename F>
__device__ double mass_where(const Row<T>& row, Shared& sm, F wanted) {
  double own = 0;
  row.for_each([&](int, float logit) {
    const float distance = row.distance(logit);
    if (wanted(distance)) own += expf(-distance);
  });
  return block_sum(own, sm.sums);
}

// The smallest value in [low, high] for which reached(value) holds; it must hold for high.
template <typename F>
__device__ uint32_t bisect(uint32_t low, uint32_t high, F reached) {
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (reached(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// The same cut for a flat distribution: of the bins that the histogram has found, only the one
// where the cut falls is sorted. False if that has too many tokens, too.
template <typename T>
__device__ bool cut_last_bin(const Row<T>& row, const SamplingRow& how, double total, bool limits_k,
                             Shared& sm, Cut& cut) {
  cut = {kHopeless, 0, 0.f};
  if (limits_k) {
    const int bin = sm.last_bin, in_bin = sm.bins.count[bin], before = sm.num_in_bins - in_bin;
    const int num = collect(row, sm, [&](float d) { return bin_of(d) == bin; });
    if (num > kMaxCandidates) return false;
    if (how.top_k - before <= num) {
      cut.distance = candidate_distance(sm.candidates[how.top_k - before - 1]);
    }
    if (!(how.top_p < 1.f)) return true;
    total = mass_where(row, sm, [&](float d) { return d <= cut.distance; });
    count_bins(row, sm);
    if (threadIdx.x < 32) find_last_bin(sm, 0, how.top_p * total);
    __syncthreads();
  }
  const double target = how.top_p * total;
  auto mass_before = [&](int bin) {
    return mass_where(row, sm, [&](float d) { return d <= cut.distance && bin_of(d) < bin; });
  };
  int bin = sm.last_bin;
  double before = mass_before(bin);
  if (before >= target) {  // the histogram's masses are rounded down: it is a bin before
    bin = bisect(0, bin - 1, [&](uint32_t b) { return mass_before(b + 1) >= target; });
    before = mass_before(bin);
  }
  const int num = collect(
      row, sm, [&](float d) { return d <= cut.distance && bin_of(d) == bin; });
  if (num == 0 || num > kMaxCandidates) return false;
  const int kept = cut_top_p(how.top_p, total, before, num, sm);
  cut.distance = candidate_distance(sm.candidates[kept - 1]);
  cut.first_id = candidate_id(sm.candidates[kept - 1]);
  return true;
}

// The same cut without candidates, where very many tokens are nearly equal: some 30 passes.
template <typename T>
__device__ Cut cut_by_bisection(const Row<T>& row, const SamplingRow& how, double total,
                                bool limits_k, Shared& sm) {
  auto count_to = [&](float limit) {
    double own = 0;
    row.for_each([&](int, float logit) { own += row.distance(logit) <= limit; });
    return block_sum(own, sm.sums);
  };
  auto mass_to = [&](float limit) {
    return mass_where(row, sm, [&](float d) { return d <= limit; });
  };
  const uint32_t farthest = __float_as_uint(kHopeless);
  Cut cut = {kHopeless, 0, 0.f};
  if (limits_k) {
    cut.distance = __uint_as_float(bisect(0, farthest, [&](uint32_t bits) {
      return count_to(__uint_as_float(bits)) >= how.top_k;
    }));
    total = mass_to(cut.distance);
  }
  if (!(how.top_p < 1.f)) return cut;
  const double target = how.top_p * total;
  const uint32_t bits = bisect(0, __float_as_uint(cut.distance), [&](uint32_t b) {
    return mass_to(__uint_as_float(b)) >= target;
  });
  cut.distance = __uint_as_float(bits);
  const double before = bits == 0 ? 0. : mass_to(__uint_as_float(bits - 1));
  const double num_ties_kept = fmax(1., ceil((target - before) / expf(-cut.distance)));
  cut.first_id = row.vocab - 1 - bisect(0, row.vocab - 1, [&](uint32_t back) {
    double own = 0;
    row.for_each([&](int id, float logit) {
      own += row.distance(logit) == cut.distance && id >= row.vocab - 1 - static_cast<int>(back);
    });
    return block_sum(own, sm.sums) >= num_ties_kept;
  });
  return cut;
}

// The token with the highest score plus noise, of those that stay.
template <typename T>
__device__ Best draw(const Row<T>& row, const Cut& cut, uint64_t seed, int position, Shared& sm) {
  Best best = {-INFINITY, 0};
  uint4 words = {};
  int group = -1;
  row.for_each([&](int id, float logit) {
    const float distance = row.distance(logit);
    if (!cut.keeps(distance, id)) return;
    if (id / 4 != group) {
      group = id / 4;
      words = random_words(seed, position, group);
    }
    best = better(best, {gumbel(word_of(words, id % 4)) - distance, id});
  });
  return block_best(best, sm);
}

template <typename T>
__device__ Best draw_candidate(const Cut& cut, int num, uint64_t seed, int position, Shared& sm) {
  Best best = {-INFINITY, 0};
  for (int i = threadIdx.x; i < num; i += kThreads) {
    const float distance = candidate_distance(sm.candidates[i]);
    const int id = candidate_id(sm.candidates[i]);
    if (!cut.keeps(distance, id)) continue;
    const uint4 words = random_words(seed, position, id / 4);
    best = better(best, {gumbel(word_of(words, id % 4)) - distance, id});
  }
  return block_best(best, sm);
}

// The first of the best tokens. Whoever is greedy wants nothing else, so this pass has more loads
// under way than others, and looks for ids only in vectors that are better than those before.
template <typename T>
__device__ Best best_of(const Row<T>& row, Shared& sm) {
  using V = Vector<T>;
  constexpr int kAhead = 8;
  const bool aligned = reinterpret_cast<uintptr_t>(row.logits) % sizeof(V) == 0;
  const int num_vectors = aligned ? row.vocab / V::kSize : 0;
  const auto* vectors = reinterpret_cast<const V*>(row.logits);
  Best best = {-INFINITY, 0};
  for (int first = threadIdx.x; first < num_vectors; first += kAhead * kThreads) {
    V ahead[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      // The last one again in place of none: it is not better than itself.
      ahead[j] = vectors[min(first + j * kThreads, num_vectors - 1)];
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      float top = to_float(ahead[j].x[0]);
#pragma unroll
      for (int e = 1; e < V::kSize; ++e) top = fmaxf(top, to_float(ahead[j].x[e]));
      if (!(top > best.value)) continue;
      best.value = top;
      const int id = min(first + j * kThreads, num_vectors - 1) * V::kSize;
#pragma unroll
      for (int e = V::kSize - 1; e >= 0; --e) {
        if (to_float(ahead[j].x[e]) == top) best.id = id + e;
      }
    }
  }
  for (int i = num_vectors * V::kSize + threadIdx.x; i < row.vocab; i += kThreads) {
    best = better(best, {to_float(row.logits[i]), i});
  }
  return block_best(best, sm);
}

template <typename T>
__device__ int sample_row(Row<T>& row, const SamplingRow& how, int position, Shared& sm) {
  const Best first = best_of(row, sm);
  if (how.temperature <= 0.f || !isfinite(first.value)) return first.id;
  row.best = first.value;
  row.temperature = how.temperature;
  const bool limits_k = how.top_k < row.vocab, limits_p = how.top_p < 1.f;
  const float limit = how.min_p > 0.f ? fminf(kHopeless, -logf(how.min_p)) : kHopeless;
  if (!limits_k && !limits_p) {
    return draw(row, {INFINITY, 0, limit}, how.seed, position, sm).id;
  }
  const double total = count_bins(row, sm);
  if (threadIdx.x < 32) find_last_bin(sm, limits_k ? how.top_k : 0, how.top_p * total);
  __syncthreads();
  if (sm.num_in_bins > kMaxCandidates) {
    Cut cut;
    if (!cut_last_bin(row, how, total, limits_k, sm, cut)) {
      cut = cut_by_bisection(row, how, total, limits_k, sm);
    }
    cut.limit = limit;
    return draw(row, cut, how.seed, position, sm).id;
  }
  const int last_bin = sm.last_bin;
  const int num = collect(row, sm, [&](float d) { return bin_of(d) <= last_bin; });
  Cut cut = cut_candidates(how, total, limits_k, num, sm);
  cut.limit = limit;
  return draw_candidate<T>(cut, num, how.seed, position, sm).id;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) sample_kernel(const Sampling s) {
  __shared__ Shared sm;
  wait_for_inputs();
  const int place = s.rows[blockIdx.x];
  if (place < 0) return;
  const SamplingRow how = s.table[place];
  const int position = s.positions[blockIdx.x];
  const T* logits = static_cast<const T*>(s.logits) + blockIdx.x * s.logits_stride;
  Row<T> row = {{logits, s.vocab}, 0.f, 1.f};
  const int token = sample_row(row, how, position, sm);
  if (threadIdx.x == 0) {
    s.out[blockIdx.x] = token;
    if (s.host) s.host[blockIdx.x] = token;
    if (s.tokens) s.tokens[place * s.tokens_stride + position] = token;
  }
}

template <typename T>
__global__ void __launch_bounds__(256) bitmask_kernel(const TokenBitmask m) {
  const int word = blockIdx.x * 256 + threadIdx.x;
  wait_for_inputs();
  if (word >= m.words) return;
  uint32_t forbidden = ~static_cast<uint32_t>(m.bitmask[blockIdx.y * m.words + word]);
  T* logits = static_cast<T*>(m.logits) + m.rows[blockIdx.y] * m.logits_stride;
  const int left = m.vocab - word * 32;
  if (left < 32) forbidden &= (1u << left) - 1;
  while (forbidden) {
    logits[word * 32 + __ffs(forbidden) - 1] = from_float<T>(-INFINITY);
    forbidden &= forbidden - 1;
  }
}

}  // namespace

cudaError_t sample(const Sampling& sampling, Dtype dtype, cudaStream_t stream) {
  if (sampling.num_rows == 0) return cudaSuccess;
  return with_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const dim3 grid(sampling.num_rows);
    return launch_dependent(sample_kernel<T>, grid, kThreads, 0, stream, sampling);
  });
}

cudaError_t apply_token_bitmask(const TokenBitmask& mask, Dtype dtype, cudaStream_t stream) {
  if (mask.num_masks == 0) return cudaSuccess;
  return with_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const dim3 grid((mask.words + 255) / 256, mask.num_masks);
    return launch_dependent(bitmask_kernel<T>, grid, 256, 0, stream, mask);
  });
}

}  // namespace sluice
