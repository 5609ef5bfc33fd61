// Products of a few tokens with weights from the ring.
//
// All warps share every stage: each multiplies 128 elements of k of its 16 rows, of which it has
// the tokens' in registers. Weights are the tensor core's operand of 16 rows, the tokens the
// columns of the other; a lone token is all of eight columns, which costs nothing. A sum has no
// order, so each thread reads 16 bytes in a row and deals them out over two instructions, and
// tokens are dealt out in the same way: in memory, 32 elements of all tokens follow each other.
#pragma once

#include "common/mma.cuh"
#include "common/vector.cuh"
#include "decoder/persistent_exchange.cuh"

namespace sluice::persistent {

__device__ __forceinline__ void sync_consumers() { sync_named(1, kConsumers); }

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

  // Multiplies x, packed [k, tokens], as soon as it has been handed over, with rows of this CTA.
  // While it is on its way, ask() is called, and take_in() when it is there. For every tile,
  // begin(first output, how many) is called before it is multiplied, and finish(first output, how
  // many, what begin returned, sum of this thread's row, sum of the row eight further) after.
  template <typename Ask, typename TakeIn, typename Begin, typename Finish>
  __device__ __forceinline__ void multiply(const Product& product, const T* x, Ask&& ask,
                                           TakeIn&& take_in, Begin&& begin, Finish&& finish) {
    const int step = product.tile_outputs(), passes = product.passes();
    Tokens tokens[kPassSlices] = {};
    bool is_first = true;
#pragma unroll 1
    for (int2 band; open(band);) {
      if (passes > 1) sync_consumers();  // the sums of the last band have been read
      int of_pass = buffer;
#pragma unroll 1
      for (int pass = 0; pass < passes; ++pass) {
        const int left = product.k - pass * kPass;
        if (is_first || passes > 1) {
          load(tokens, x + pass * (kPass * kTokens), left, [&] {
            if (is_first) ask();
          });
          if (is_first) take_in();
          is_first = false;
        }
        of_pass = buffer;
#pragma unroll 1
        for (int output = band.x; output < band.y; output += step) {
          const int outputs = min(band.y - output, step);
          const auto early = begin(output, outputs);
          Sums sums = {};
#pragma unroll
          for (int slice = 0; slice < kPassSlices; ++slice) {
            const int own = left - slice * kSlice - warp * kWarpSlice;  // elements, or more
            if (slice * kSlice < left) add_stage(sums, tokens[slice], own / 32);
          }
          keep(sums, of_pass, pass > 0);
          if (pass + 1 == passes) {
            sync_consumers();
            finish(output, outputs, early, sum(of_pass, row), sum(of_pass, row ^ 8));
          }
          of_pass = (of_pass + 1) % kBand;
        }
      }
      buffer = of_pass;
    }
  }

 private:
  Shared& sm;
  const int warp, lane, num_tokens;
  Place<kStages> place;
  int buffer = 0;  // of sums, the next: one is read while another is written

  // Waits for the next band of the product; false if it is over.
  __device__ __forceinline__ bool open(int2& band) {
    mbarrier_wait(address(&sm.full[place.stage]), place.parity);
    band = sm.bands[place.stage];
    if (band.x >= 0) return true;
    free_stage();
    return false;
  }

  __device__ __forceinline__ void free_stage() {
    __syncwarp();
    if (lane == 0) mbarrier_arrive(address(&sm.empty[place.stage]));
    place.advance();
  }

  // This warp's elements of a pass from x on, of which there are `left`.
  template <typename Ask>
  __device__ __forceinline__ void load(Tokens (&to)[kPassSlices], const T* x, int left, Ask&& ask) {
    const T* from[kGroups];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int of = min(group * 8 + lane / 4, num_tokens - 1);
      from[group] = x + (warp * kWarpSlice * kTokens + of * 32 + lane % 4 * 8);
    }
    left -= warp * kWarpSlice;
    const auto at = [](int slice, int i) { return slice * kSlice + i * 32; };
    // Asking for all again and again would hold up the weights.
    if (left > 0) await_last(from[0] + at(min(left - 1, kPass - kSlice) / kSlice, 0) * kTokens);
#pragma unroll
    for (int slice = 0; slice < kPassSlices; ++slice) {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          auto& words = to[slice][i][group];
#pragma unroll
          for (auto& word : words) word = 0;
          if (at(slice, i) < left) look(words, from[group] + at(slice, i) * kTokens);
        }
      }
    }
    ask();
    SpinLimit limit;
    while (__any_sync(~0u, lacks_any(to))) {
      limit.check();
#pragma unroll
      for (int slice = 0; slice < kPassSlices; ++slice) {
#pragma unroll
        for (int i = 0; i < kChunks; ++i) {
#pragma unroll
          for (int group = 0; group < kGroups; ++group) {
            auto& words = to[slice][i][group];
            if (lacks_half(greatest_of(words))) look(words, from[group] + at(slice, i) * kTokens);
          }
        }
      }
    }
  }

  // What this thread's token has there.
  __device__ __forceinline__ void await_last(const T* from) const {
    SpinLimit limit;
    uint32_t words[4];
    do {
      limit.check();
      look(words, from);
    } while (__any_sync(~0u, lacks_half(greatest_of(words))));
  }

  static __device__ __forceinline__ bool lacks_any(const Tokens (&tokens)[kPassSlices]) {
    uint32_t most = 0;
#pragma unroll
    for (int slice = 0; slice < kPassSlices; ++slice) {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          const auto& words = tokens[slice][i][group];
          most = greatest(greatest(words[0], words[1], most), words[2], words[3]);
        }
      }
    }
    return lacks_half(most);
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
    free_stage();
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
