// Results of attention over some of the keys, and how they become one.
#pragma once

#include "attention/decode_memory.cuh"
#include "common/cluster.cuh"
#include "common/exchange.cuh"
#include "common/spin_limit.cuh"

namespace sluice {

// A row that has seen no key has a max of -inf; exp2(-inf - -inf) must not become NaN.
__device__ __forceinline__ float exponent_base(float max) { return max == -INFINITY ? 0.f : max; }

constexpr float kLog2e = 1.4426950408889634f;

// What a score without a value (an attention sink) adds to a row's sum, which is relative to 2^max. A
// row without keys gets infinity, so that it becomes zeros.
__device__ __forceinline__ float sink_weight(float sink, float max) {
  return exp2f(sink * kLog2e - max);
}

// Four columns of a row over some of its keys.
struct Part {
  float max = -INFINITY, sum = 0.f;
  float4 x = {0.f, 0.f, 0.f, 0.f};

  // stats: max and sum of the others.
  template <int kOthers>
  __device__ __forceinline__ void add(const float2 (&stats)[kOthers],
                                      const float4 (&others)[kOthers]) {
    const float old = max;
#pragma unroll
    for (int i = 0; i < kOthers; ++i) max = fmaxf(max, stats[i].x);
    const float base = exponent_base(max);
    const float f = exp2f(old - base);
    sum *= f;
    x = {x.x * f, x.y * f, x.z * f, x.w * f};
#pragma unroll
    for (int i = 0; i < kOthers; ++i) {
      const float g = exp2f(stats[i].x - base);
      sum += stats[i].y * g;
      x.x += others[i].x * g;
      x.y += others[i].y * g;
      x.z += others[i].z * g;
      x.w += others[i].w * g;
    }
  }

  // Of `num` parts in their order, of each of the columns `merged`; kUnroll parts at a time:
  // load(column, i, stats, x), which leaves both as they are if there is no part i. kWait: what is
  // not there yet is asked for again.
  template <int kUnroll, bool kWait, int kColumns, typename Load>
  static __device__ __forceinline__ void merge(int num, Part (&merged)[kColumns], Load&& load) {
#pragma unroll 1
    for (int from = 0; from < num; from += kUnroll) {
      float2 stats[kColumns][kUnroll];
      float4 others[kColumns][kUnroll];
#pragma unroll
      for (int u = 0; u < kColumns * kUnroll; ++u) {
        stats[u / kUnroll][u % kUnroll] = {-INFINITY, 0.f};
        others[u / kUnroll][u % kUnroll] = {0.f, 0.f, 0.f, 0.f};
      }
      SpinLimit limit;
      bool lacks_one;
      do {
        limit.check();
#pragma unroll
        for (int u = 0; u < kColumns * kUnroll; ++u) {
          const int column = u / kUnroll, i = u % kUnroll;
          load(column, from + i, stats[column][i], others[column][i]);
        }
        lacks_one = false;
#pragma unroll
        for (int u = 0; u < kColumns * kUnroll; ++u) {
          lacks_one |= lacks(stats[u / kUnroll][u % kUnroll], others[u / kUnroll][u % kUnroll]);
        }
      } while (kWait && lacks_one);
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        merged[column].add(stats[column], others[column]);
      }
    }
  }
};

// Results in memory, as rows of kQuads float4s, for the CTA that has an item's last keys.
template <unsigned kQuads>
struct Partials {
  float4* out;
  float2* stats;  // once for kStatsQuads quads

  // Quad j of the rows from `row` on.
  __device__ void hand_over(int row, unsigned j, const Part& part) const {
    sluice::hand_over(out_at(row, j), part.x);
    if (j % kStatsQuads == 0) {
      sluice::hand_over(stats_at(row, j), make_float2(part.max, part.sum));
    }
  }

  // store(quad, part) with what `num` parts make of each of so many quads, where part i has the
  // rows from row_of(i) on; empties them for the next launch. kColumns: of a thread at a time.
  template <int kColumns, typename RowOf, typename Store>
  __device__ void merge(int num, unsigned quads, RowOf&& row_of, Store&& store) const {
    constexpr int kUnroll = kColumns == 1 ? 8 : 4;  // the results sit in the L2
    const unsigned lane = threadIdx.x % 32;
#pragma unroll 1
    for (unsigned from = threadIdx.x - lane; from < quads; from += kColumns * kThreads) {
      // By whole warps: beyond the last quad are copies of some of the warp's own.
      const auto quad = [&](int column) {
        const unsigned first = from + column * kThreads;
        return min((first < quads ? first : from) + lane, quads - 1);
      };
      Part merged[kColumns];
      Part::merge<kUnroll, true>(num, merged, [&](int column, int i, float2& s, float4& x) {
        look_if(i < num, x, out_at(row_of(i), quad(column)));
        look_if(i < num, s, stats_at(row_of(i), quad(column)));
      });
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        const unsigned j = quad(column);
        if (j == from + column * kThreads + lane) store(j, merged[column]);
      }
      __syncwarp();  // nobody looks any more
#pragma unroll 4
      for (int i = 0; i < num; ++i) {
#pragma unroll
        for (int column = 0; column < kColumns; ++column) {
          empty(out_at(row_of(i), quad(column)));
          empty(stats_at(row_of(i), quad(column)));
        }
      }
    }
  }

 private:
  __device__ float4* out_at(int row, unsigned j) const { return out + row * kQuads + j; }
  __device__ float2* stats_at(int row, unsigned j) const {
    return stats + (row * kQuads + j) / kStatsQuads;
  }
};

// Of a CTA's share of its item's result, what all CTAs of the cluster have made of it.
template <int kQuads>
struct Handed {
  float4 x[kQuads + 4 * kMaxCluster];
  float2 stats[kQuads + 4 * kMaxCluster];
};

// An item that the CTAs of a cluster share: each has a part of its keys, and merges the results of
// all for some of the columns, 16 neighbouring ones in turn.
template <int kMaxQuads>
class SharedItem {
 public:
  // quads: columns of all rows, divided by four; a multiple of 4. parts: CTAs that have keys.
  __device__ SharedItem(Handed<kMaxQuads>& own, uint64_t& results, int rank, const Divisor& cluster,
                        int quads, int parts)
      : own(own), results(results), rank(rank), cluster(cluster), quads(quads), parts(parts) {}

  // By all threads, before anything is handed over.
  __device__ void expect() const {
    constexpr int kBytes = sizeof(float4) + sizeof(float2);
    if (threadIdx.x == 0) expect_results(&results, share(rank) * parts * kBytes);
    arrive_at_cluster();
  }

  // Quad j of this CTA's part; after wait_for_cluster.
  __device__ void hand_over(int j, const Part& part) const {
    const int turn = quotient(j / 4, cluster), owner = j / 4 - turn * cluster.value;
    const int at = rank * share(0) + turn * 4 + j % 4;
    send(owner, &own.x[at], part.x, &results);
    send(owner, &own.stats[at], make_float2(part.max, part.sum), &results);
  }

  // store(quad, part) with what the parts make of each quad that is this CTA's.
  template <typename Store>
  __device__ void merge(Store&& store) const {
    constexpr int kUnroll = 4;
    wait_for_results(&results);
#pragma unroll 1
    for (int i = threadIdx.x; i < share(rank); i += kThreads) {
      Part merged[1];
      Part::merge<kUnroll, false>(parts, merged, [&](int, int part, float2& stats, float4& x) {
        if (part >= parts) return;
        x = own.x[part * share(0) + i];
        stats = own.stats[part * share(0) + i];
      });
      store((i / 4 * cluster.value + rank) * 4 + i % 4, merged[0]);
    }
  }

 private:
  Handed<kMaxQuads>& own;
  uint64_t& results;
  const int rank;
  const Divisor& cluster;
  const int quads, parts;

  // Quads that a CTA merges; the first has most.
  __device__ int share(int of_rank) const {
    return quotient(quads / 4 + cluster.value - 1 - of_rank, cluster) * 4;
  }
};

}  // namespace sluice
