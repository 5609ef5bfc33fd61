// In place of the kernels' own: each thread works out its accumulators, as soon as it is told to.
#pragma once

#include "common/vector.cuh"
#include "warp.h"

namespace sluice {

inline uint64_t tile_descriptor(uint32_t smem, uint32_t) { return smem; }

template <int kGroup = 1024>
struct TileDescriptor {
  uint32_t begin;

  TileDescriptor(uint32_t smem, uint32_t) : begin(smem) {}
  uint64_t at(uint32_t bytes) const { return begin + bytes; }
};

// Element `step` of row `row` of a tile in swizzled rows of 128 bytes, of which eight follow each other.
template <typename T>
float tile_element(uint64_t tile, int row, int step) {
  const uint32_t at = tile + row * 128 + step * 2;
  return to_float(*reinterpret_cast<const T*>(emulation::shared_memory + (at ^ (at >> 7 & 7) << 4)));
}

template <typename T, int N>
void wgmma(float (&d)[N], uint64_t a, uint64_t b, bool fresh) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  for (int i = 0; i < N; ++i) {
    const int row = warp * 16 + lane / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    float sum = fresh ? 0.f : d[i];
    for (int step = 0; step < 16; ++step) {
      sum += tile_element<T>(a, row, step) * tile_element<T>(b, column, step);
    }
    d[i] = sum;
  }
}

inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int N>
void wgmma_wait() {}
template <int N>
void pin(float (&)[N]) {}

}  // namespace sluice
