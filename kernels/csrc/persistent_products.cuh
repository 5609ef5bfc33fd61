// Products of a few tokens with weights from the ring.
//
// All warps share every stage: each multiplies 128 elements of k of its 16 rows, of which it has
// the tokens' in registers. Weights are the tensor core's operand of 16 rows, the tokens the columns
// of the other; a lone token is all of eight columns, which costs nothing. A sum has no order, so
// each thread reads 16 bytes in a row and deals them out over two instructions, and tokens are dealt
// out in the same way: in memory, 32 elements of all tokens follow each other.
#pragma once

#include "mma.cuh"
#include "persistent_ring.cuh"
#include "vector.cuh"

namespace sluice::persistent {

__device__ __forceinline__ void sync_consumers() { sync_named(1, kConsumers); }

// Where element k of a token is in what phases hand each other.
template <int kGroups>
__device__ __forceinline__ int64_t packed_at(int token, int k) {
  return static_cast<int64_t>(k / 32 * (kGroups * 8) + token) * 32 + k % 32;
}

template <typename T, int kGroups>  // groups of 8 tokens
class Products {
  static constexpr int kWarpSlice = kSlice / kWarps;  // a warp's elements of a slice
  static constexpr int kChunks = kWarpSlice / 32;
  static constexpr int kSets = 4 / kGroups;  // of sums, so that no product waits for the last one
  static constexpr int kTokens = kGroups * 8;
  using Tokens = uint32_t[kChunks][kGroups][4];  // of a slice
  using Sums = float[kGroups][kSets][4];

 public:
  // Which row of a tile and which token this thread finishes.
  const int row, token;

  __device__ __forceinline__ Products(Shared& shared, int tokens)
      : row(threadIdx.x % kTileRows), token(threadIdx.x / kTileRows), sm(shared),
        warp(threadIdx.x / 32), lane(threadIdx.x % 32), num_tokens(tokens) {}

  // Multiplies x, packed [k, tokens], with the rows of this CTA. While x is on its way, prepare() is
  // called. For every tile, begin(first output) is called before it is multiplied, and finish(first
  // output, what begin returned, sum of this thread's row, sum of the row eight further) after.
  template <typename Prepare, typename Begin, typename Finish>
  __device__ __forceinline__ void multiply(const Product& product, const Share& share, const T* x,
                                           Prepare&& prepare, Begin&& begin, Finish&& finish) {
    const int step = product.tile_outputs(), passes = (product.k + kPass - 1) / kPass;
    Tokens tokens[kPassSlices];
    load(tokens, x, 0, product.k);
    prepare();
#pragma unroll 1
    for (int band = share.begin; band < share.end; band += kBand * step) {
      const int band_end = min(band + kBand * step, share.end);
      if (passes > 1) sync_consumers();  // the sums of the last band have been read
#pragma unroll 1
      for (int pass = 0; pass < passes; ++pass) {
        if (pass > 0 || (passes > 1 && band > share.begin)) load(tokens, x, pass, product.k);
        const int left = product.k - pass * kPass;
        int buffer = 0;
#pragma unroll 1
        for (int output = band; output < band_end; output += step, ++buffer) {
          const auto early = begin(output);
          Sums sums = {};
#pragma unroll
          for (int slice = 0; slice < kPassSlices; ++slice) {
            const int own = left - slice * kSlice - warp * kWarpSlice;  // elements, or more
            if (slice * kSlice < left) add_stage(sums, tokens[slice], own / 32);
          }
          keep(sums, buffer, pass > 0);
          if (pass + 1 < passes) continue;
          sync_consumers();
          finish(output, early, sum(buffer, row), sum(buffer, row ^ 8));
        }
      }
    }
  }

 private:
  Shared& sm;
  const int warp, lane, num_tokens;
  Place<kStages> place;

  // This warp's elements of a pass.
  __device__ __forceinline__ void load(Tokens (&to)[kPassSlices], const T* x, int pass, int k) {
    const T* from[kGroups];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int of = min(group * 8 + lane / 4, num_tokens - 1);
      from[group] = x + of * 32 + lane % 4 * 8;
    }
#pragma unroll
    for (int slice = 0; slice < kPassSlices; ++slice) {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        const int first = pass * kPass + slice * kSlice + warp * kWarpSlice + i * 32;
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          uint4 v = make_uint4(0, 0, 0, 0);
          if (first < k) v = __ldcg(reinterpret_cast<const uint4*>(from[group] + first * kTokens));
          auto& words = to[slice][i][group];
          words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
        }
      }
    }
  }

  // chunks: how many of 32 elements there are for this warp, or more.
  __device__ __forceinline__ void add_stage(Sums& sums, const Tokens& tokens, int chunks) {
    mbarrier_wait(address(&sm.full[place.stage]), place.parity);
    const uint32_t at = address(sm.stages[place.stage].rows) + row_offset(lane / 4) +
                        warp * kWarpSlice * 2 + lane % 4 * 16;
    if (chunks >= kChunks) {
      uint32_t rows[kChunks][2][4];
#pragma unroll
      for (int i = 0; i < kChunks; ++i) load_rows(rows[i], at + i * 64);
#pragma unroll
      for (int i = 0; i < kChunks; ++i) add(sums, rows[i], tokens[i], i);
    } else {
#pragma unroll
      for (int i = 0; i < kChunks - 1; ++i) {
        if (i >= chunks) break;
        uint32_t rows[2][4];
        load_rows(rows, at + i * 64);
        add(sums, rows, tokens[i], i);
      }
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(address(&sm.empty[place.stage]));
    place.advance();
  }

  static __device__ __forceinline__ void load_rows(uint32_t (&rows)[2][4], uint32_t at) {
    load_shared(rows[0], at);
    load_shared(rows[1], at + kTileRows / 4 * kSliceBytes);  // eight rows further
  }

  static __device__ __forceinline__ void add(Sums& sums, const uint32_t (&rows)[2][4],
                                             const uint32_t (&tokens)[kGroups][4], int chunk) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t a[4] = {rows[0][2 * i], rows[1][2 * i], rows[0][2 * i + 1],
                             rows[1][2 * i + 1]};
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const auto& x = tokens[group];
        Half<T>::mma(sums[group][(chunk * 2 + i) % kSets], a, x[2 * i], x[2 * i + 1]);
      }
    }
  }

  // Where the sums of a row for a token are, two tokens side by side; rows of a warp's reads and
  // writes meet in few banks.
  static __device__ __forceinline__ int sum_at(int row, int token) {
    return row * kTokens + (token + row / 2 * 2) % kTokens;
  }

  // This warp's sums of a tile.
  __device__ __forceinline__ void keep(const Sums& sums, int buffer, bool add) {
    float* to = sm.scratch.sums[buffer][warp];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = sum_at(lane / 4 + half * 8, group * 8 + lane % 4 * 2);
        float2& kept = *reinterpret_cast<float2*>(to + at);
        float2 total = add ? kept : make_float2(0.f, 0.f);
#pragma unroll
        for (int set = 0; set < kSets; ++set) {
          total.x += sums[group][set][half * 2];
          total.y += sums[group][set][half * 2 + 1];
        }
        kept = total;
      }
    }
  }

  // All warps' sums of a row, for this thread's token.
  __device__ __forceinline__ float sum(int buffer, int of_row) const {
    float total = 0.f;
    const int at = sum_at(of_row, token % kTokens);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += sm.scratch.sums[buffer][w][at];
    return total;
  }
};

}  // namespace sluice::persistent
