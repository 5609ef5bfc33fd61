// Products of one token with weights from the ring.
//
// All warps share every stage: each multiplies 128 elements of k of its 16 rows, of which it has
// the token's in registers, and keeps its sums in shared memory until the phase's end. A row of
// weights is the tensor core's operand of 16 rows; all eight columns of the other operand are the
// same token. A sum has no order, so each thread reads 16 bytes in a row and deals them out over
// two instructions, and x is dealt out in the same way.
#pragma once

#include "mma.cuh"
#include "persistent_ring.cuh"
#include "reduce.cuh"
#include "vector.cuh"

namespace sluice::persistent {

__device__ __forceinline__ void sync_consumers() { sync_named(1, kConsumers); }

// A lane's elements of k of a pass: 16 bytes of two slices.
struct Piece {
  uint4 words[2];
};

template <typename T>
class Products {
  static constexpr int kWarpSlice = kSlice / kWarps;  // a warp's elements of a slice
  static constexpr int kChunks = kWarpSlice / 32;
  static constexpr int kSets = 4;  // of sums, so that no product waits for the one before it

 public:
  __device__ __forceinline__ explicit Products(Shared& shared)
      : sm(shared), warp(threadIdx.x / 32), lane(threadIdx.x % 32) {}

  // What this lane has of a pass of `from`, [k]. now: other CTAs wrote it in this launch.
  template <bool kNow>
  __device__ __forceinline__ Piece load(const void* from, int pass, int k) const {
    Piece piece = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = element(pass, i);
      if (at >= k) continue;
      const uint4* words = reinterpret_cast<const uint4*>(static_cast<const T*>(from) + at);
      piece.words[i] = kNow ? __ldcg(words) : __ldg(words);
    }
    return piece;
  }

  // x, [k], normed.
  __device__ __forceinline__ void norm(Piece (&x)[kNormPasses], const Piece (&weight)[kNormPasses], int k,
                       float eps) {
    float squares = 0.f;
    each(x, [&](const Vector<T>& v, int, int) {
#pragma unroll
      for (int e = 0; e < 8; ++e) squares += to_float(v.x[e]) * to_float(v.x[e]);
    });
    squares = warp_sum(squares);
    if (lane == 0) sm.squares[warp] = squares;
    sync_consumers();
    squares = 0.f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) squares += sm.squares[w];
    const float scale = rsqrtf(squares / k + eps);
    each(x, [&](Vector<T>& v, int pass, int i) {
      const auto& w = reinterpret_cast<const Vector<T>&>(weight[pass].words[i]);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        v.x[e] = from_float<T>(rounded<T>(to_float(v.x[e]) * scale) * to_float(w.x[e]));
      }
    });
  }

  // Multiplies `from`, [k], with the rows of this CTA. first: what this lane has of its first passes;
  // the others are loaded in time.
  __device__ __forceinline__ void multiply(const Product& product, int outputs, const void* from,
                                           const Piece (&first)[kNormPasses]) {
    const int step = product.tile_outputs();
    const int tiles = (outputs + step - 1) / step, passes = (product.k + kPass - 1) / kPass;
    Piece piece = first[0], next = first[1];
#pragma unroll 1
    for (int pass = 0; pass < passes; ++pass) {
      uint32_t x[kPassSlices][kChunks][4];
      deal(piece, x);
      piece = next;
      if (pass + kNormPasses < passes) next = load<true>(from, pass + kNormPasses, product.k);
      const int left = product.k - pass * kPass;
#pragma unroll 1
      for (int tile = 0; tile < tiles; ++tile) {
        float sums[kSets][4] = {};
#pragma unroll
        for (int slice = 0; slice < kPassSlices; ++slice) {
          const int own = left - slice * kSlice - warp * kWarpSlice;  // elements, or more
          if (slice * kSlice < left) add_stage(sums, x[slice], own / 32);
        }
        keep(sums, tile * kTileRows, pass > 0);
      }
    }
    sync_consumers();
  }

  // The product with row r of those of this CTA.
  __device__ __forceinline__ float sum(int r) const {
    float total = 0.f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += sm.scratch.product.sums[w][r];
    return total;
  }

 private:
  Shared& sm;
  const int warp, lane;
  Place<kStages> place;

  __device__ __forceinline__ int element(int pass, int i) const {
    return pass * kPass + (2 * i + lane / 16) * kSlice + warp * kWarpSlice + lane % 16 * 8;
  }

  template <typename Work>
  static __device__ __forceinline__ void each(Piece (&x)[kNormPasses], Work&& work) {
#pragma unroll
    for (int pass = 0; pass < kNormPasses; ++pass) {
#pragma unroll
      for (int i = 0; i < 2; ++i) work(reinterpret_cast<Vector<T>&>(x[pass].words[i]), pass, i);
    }
  }

  // From the lanes that loaded them to all that multiply with them, within the warp.
  __device__ __forceinline__ void deal(const Piece& piece, uint32_t (&x)[kPassSlices][kChunks][4]) {
    const uint32_t at = address(sm.scratch.product.x[warp]);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 w = piece.words[i];
      store_shared(at + (i * 32 + lane) * 16, {w.x, w.y, w.z, w.w});
    }
    __syncwarp();
#pragma unroll
    for (int slice = 0; slice < kPassSlices; ++slice) {
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        load_shared(x[slice][chunk], at + slice * kWarpSlice * 2 + chunk * 64 + lane % 4 * 16);
      }
    }
  }

  // chunks: how many of 32 elements there are for this warp, or more.
  __device__ __forceinline__ void add_stage(float (&sums)[kSets][4], const uint32_t (&x)[kChunks][4], int chunks) {
    mbarrier_wait(address(&sm.full[place.stage]), place.parity);
    const uint32_t at = address(sm.stages[place.stage].rows) + row_offset(lane / 4) +
                        warp * kWarpSlice * 2 + lane % 4 * 16;
    if (chunks >= kChunks) {
      uint32_t rows[kChunks][2][4];
#pragma unroll
      for (int i = 0; i < kChunks; ++i) load_rows(rows[i], at + i * 64);
#pragma unroll
      for (int i = 0; i < kChunks; ++i) add(sums, rows[i], x[i], i);
    } else {
#pragma unroll
      for (int i = 0; i < kChunks - 1; ++i) {
        if (i >= chunks) break;
        uint32_t rows[2][4];
        load_rows(rows, at + i * 64);
        add(sums, rows, x[i], i);
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

  static __device__ __forceinline__ void add(float (&sums)[kSets][4], const uint32_t (&rows)[2][4],
                                             const uint32_t (&x)[4], int chunk) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t a[4] = {rows[0][2 * i], rows[1][2 * i], rows[0][2 * i + 1],
                             rows[1][2 * i + 1]};
      Half<T>::mma(sums[chunk % 2 * 2 + i], a, x[2 * i], x[2 * i + 1]);
    }
  }

  // This warp's sums of a tile whose first row is `row`.
  __device__ __forceinline__ void keep(const float (&sums)[kSets][4], int row, bool add) {
    if (lane % 4 != 0) return;
    float* to = &sm.scratch.product.sums[warp][row + lane / 4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = add ? to[half * 8] : 0.f;
#pragma unroll
      for (int set = 0; set < kSets; ++set) total += sums[set][half * 2];
      to[half * 8] = total;
    }
  }
};

}  // namespace sluice::persistent
