// Each rank writes its summands into the memory of all others, and adds up what it finds in its
// own. Of few bytes, a word travels with a flag in the same 8 bytes, which are written at once, so
// that a sum costs one way over NVLink: no fence, and no barrier (NCCL's LL protocol, for all at
// once). Of more bytes, that would be twice as many: there a flag follows each row, behind a fence.
//
// The flag is how often a CTA has exchanged a row, and rows use two slots in turns. A slot is
// written again only when the row after it has arrived from the same rank, whose CTA has then read
// this one.

#include <algorithm>
#include <type_traits>

#include "collectives/all_reduce.cuh"
#include "collectives/flagged_words.cuh"
#include "common/dependent_launch.cuh"
#include "common/vector.cuh"
#include "norm_rope/rows.cuh"

namespace sluice {
namespace {

constexpr int kLooks = 1024;  // between two at the word that ends all waiting

struct Exchange {
  void* out;
  const void* x;
  void* residual;
  const void* weight;
  float eps;
  int rows;
  int vectors;  // of a row
  int rank;
  int ranks;
  uint8_t* buffers[kMostRanks];
};

// The 16 bytes at `slot`, once they are there; whatever is there when `ended` becomes set.
__device__ __forceinline__ uint4 receive(const uint8_t* slot, uint32_t flag,
                                         const volatile uint32_t* ended) {
  uint4 first, second;
  for (int looks = 1;; ++looks) {
    first = look(slot);
    second = look(slot + kExchangePlain);
    const bool arrived =
        first.y == flag && first.w == flag && second.y == flag && second.w == flag;
    if (arrived || (looks % kLooks == 0 && *ended != 0)) break;
  }
  return {first.x, first.z, second.x, second.z};
}

// Returns when the flag has been reached, or `ended` is set.
__device__ __forceinline__ void await(const uint32_t* at, uint32_t flag,
                                      const volatile uint32_t* ended) {
  for (int looks = 1; static_cast<int32_t>(acquired(at) - flag) < 0; ++looks) {
    if (looks % kLooks == 0 && *ended != 0) break;
  }
}

template <typename T, bool kFlagged, bool kNorm, bool kWide>
__global__ void __launch_bounds__(1024) all_reduce_kernel(const __grid_constant__ Exchange p) {
  using V = Vector<T>;
  using W = VectorWeights<T, kWide>;
  const int i = threadIdx.x;
  const bool active = i < p.vectors;
  W weight;
  if (kNorm && active) weight = W::load(p.weight, i);
  wait_for_inputs();
  allow_next();
  uint8_t* own = p.buffers[p.rank];
  auto* control = reinterpret_cast<uint32_t*>(own);
  uint32_t* count = control + 16 + blockIdx.x;
  // Of each CTA those of all ranks: how many of their rows have arrived as a whole.
  const int arrivals = 16 + kExchangeCtas + blockIdx.x * kMostRanks;
  uint32_t flag = *count;
  for (int row = blockIdx.x; row < p.rows; row += gridDim.x) {
    ++flag;
    const int64_t at = static_cast<int64_t>(row) * p.vectors + i;
    const int64_t turn = (blockIdx.x * 2 + flag % 2) * p.ranks;
    auto slot = [&](uint8_t* buffer, int from) {
      constexpr int64_t kSize = kFlagged ? kExchangeFlagged : kExchangePlain;
      uint8_t* first = buffer + kExchangeControl;
      if (!kFlagged) first += kExchangeCtas * 2 * p.ranks * kExchangeFlagged;
      return first + (turn + from) * kSize + i * 16;
    };
    V value{}, before{};
    uint4 mine;
    if (active) {
      // Early: it comes from memory, as what is waited for does not.
      if (kNorm) before = static_cast<const V*>(p.residual)[at];
      mine = static_cast<const uint4*>(p.x)[at];
      for (int step = 1; step < p.ranks; ++step) {
        uint8_t* to = slot(p.buffers[(p.rank + step) % p.ranks], p.rank);
        if constexpr (kFlagged) {
          send(to, mine.x, mine.y, flag);
          send(to + kExchangePlain, mine.z, mine.w, flag);
        } else {
          *reinterpret_cast<uint4*>(to) = mine;
        }
      }
    }
    if constexpr (!kFlagged) {
      __syncthreads();  // all of the row is written
      if (i < p.ranks && i != p.rank) {
        release(reinterpret_cast<uint32_t*>(p.buffers[i]) + arrivals + p.rank, flag);
        await(control + arrivals + i, flag, control);
      }
      __syncthreads();
    }
    if (active) {
      float sums[V::kSize] = {};
      for (int from = 0; from < p.ranks; ++from) {
        uint4 found = mine;
        if (from != p.rank) {
          const uint8_t* at_own = slot(own, from);
          found = kFlagged ? receive(at_own, flag, control) : look(at_own);
        }
        const V& summand = reinterpret_cast<const V&>(found);
#pragma unroll
        for (int e = 0; e < V::kSize; ++e) sums[e] += to_float(summand.x[e]);
      }
#pragma unroll
      for (int e = 0; e < V::kSize; ++e) value.x[e] = from_float<T>(sums[e]);
    }
    if constexpr (kNorm) {
      float squares = 0.f;
      if (active) {
#pragma unroll
        for (int e = 0; e < V::kSize; ++e) {
          value.x[e] = from_float<T>(to_float(value.x[e]) + to_float(before.x[e]));
          const float f = to_float(value.x[e]);
          squares += f * f;
        }
        static_cast<V*>(p.residual)[at] = value;
      }
      const float width = p.vectors * V::kSize;
      const float scale = rsqrtf(block_sum(squares) / width + p.eps);
      if (active) {
#pragma unroll
        for (int e = 0; e < V::kSize; ++e) {
          value.x[e] = from_float<T>(weighted<T, kWide>(to_float(value.x[e]), scale, weight[e]));
        }
      }
      __syncthreads();  // all have read the sum of squares
    }
    if (active) static_cast<V*>(p.out)[at] = value;
  }
  __syncthreads();  // all have read the count
  if (i == 0) *count = flag;
}

}  // namespace

cudaError_t all_reduce(const AllReduce& sum, Dtype dtype, cudaStream_t stream) {
  return with_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    Exchange p = {sum.out,  sum.x,     sum.residual, sum.weight,
                  sum.eps,  sum.rows,  sum.width / Vector<T>::kSize,
                  sum.rank, sum.ranks, {}};
    for (int rank = 0; rank < sum.ranks; ++rank) {
      p.buffers[rank] = reinterpret_cast<uint8_t*>(sum.buffers[rank]);
    }
    const unsigned ctas = std::min(p.rows, kExchangeCtas);
    const int64_t bytes = static_cast<int64_t>(p.rows) * p.vectors * 16;
    auto run = [&](auto flagged, auto norm, auto wide) {
      constexpr bool kWide = decltype(wide)::value && !std::is_same_v<T, float>;
      auto kernel = all_reduce_kernel<T, decltype(flagged)::value, decltype(norm)::value, kWide>;
      return launch_dependent(kernel, ctas, row_threads(p.vectors), 0, stream, p);
    };
    auto choose = [&](auto flagged) {
      if (sum.weight == nullptr) return run(flagged, std::false_type{}, std::false_type{});
      return sum.wide ? run(flagged, std::true_type{}, std::true_type{})
                      : run(flagged, std::true_type{}, std::false_type{});
    };
    return bytes <= sum.most_flagged ? choose(std::true_type{}) : choose(std::false_type{});
  });
}

}  // namespace sluice
