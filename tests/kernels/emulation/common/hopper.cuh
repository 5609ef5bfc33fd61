// In place of the kernels' own: barriers in shared memory and the tensor copy engine, whose copies
// are done at once.
#pragma once

#include <cuda.h>

#include "warp.h"

#define SLUICE_HOPPER

namespace sluice {

struct EmulatedBarrier {
  uint8_t arrivals, pending;
  uint16_t phase;
  int32_t bytes;  // still to be copied
};

inline EmulatedBarrier& barrier_of(int rank, uint32_t at) {
  return *reinterpret_cast<EmulatedBarrier*>(emulation::ctas[rank].memory + at);
}
inline void end_phase(EmulatedBarrier& barrier) {
  if (barrier.pending > 0 || barrier.bytes != 0) return;
  barrier.pending = barrier.arrivals;
  ++barrier.phase;
}
inline void arrive(EmulatedBarrier& barrier, int bytes) {
  if (barrier.pending == 0) std::abort();  // more than there should be
  --barrier.pending;
  barrier.bytes += bytes;
  end_phase(barrier);
}
inline void mbarrier_init(uint32_t at, int arrivals) {
  barrier_of(emulation::rank(), at) = {static_cast<uint8_t>(arrivals), static_cast<uint8_t>(arrivals), 0, 0};
}
inline void mbarrier_init_fence() {}
inline void mbarrier_expect(uint32_t at, int bytes) { arrive(barrier_of(emulation::rank(), at), bytes); }
inline void mbarrier_arrive(uint32_t at) { arrive(barrier_of(emulation::rank(), at), 0); }
inline void mbarrier_arrive_at(int rank, uint32_t at) {
  arrive(barrier_of(emulation::first_of_cluster() + rank, at), 0);
}
inline void mbarrier_wait(uint32_t at, int parity) {
  const auto& barrier = barrier_of(emulation::rank(), at);
  emulation::wait_until([&barrier, parity] { return (barrier.phase & 1) != parity; });
}

// What stands in a CUtensorMap: a matrix of 16-bit elements, copied in swizzled rows of 128 bytes.
struct EmulatedMap {
  const uint8_t* base;
  int64_t columns, rows, stride;  // the last in bytes
  int box_columns, box_rows;
};

inline void copy_box_to(uint16_t ranks, uint32_t to, const CUtensorMap& map, uint32_t barrier, int x,
                        int y) {
  EmulatedMap m;
  std::memcpy(&m, &map, sizeof(m));
  const int first = emulation::first_of_cluster();
  for (int rank = first; rank < emulation::threads / emulation::threads_each; ++rank) {
    if (!(ranks >> (rank - first) & 1)) continue;
    uint32_t offset = 0;
    for (int row = y; row < y + m.box_rows; ++row) {
      for (int column = x; column < x + m.box_columns; ++column, offset += 2) {
        uint8_t* at = emulation::ctas[rank].memory + to + (offset ^ (offset >> 7 & 7) << 4);
        const bool inside = row < m.rows && column < m.columns;
        inside ? std::memcpy(at, m.base + row * m.stride + column * 2, 2) : std::memset(at, 0, 2);
      }
    }
    barrier_of(rank, barrier).bytes -= offset;
    end_phase(barrier_of(rank, barrier));
  }
}
inline void copy_box(uint32_t to, const CUtensorMap& map, uint32_t barrier, int x, int y) {
  copy_box_to(1 << (emulation::rank() - emulation::first_of_cluster()), to, map, barrier, x, y);
}
inline void copy_box(uint32_t to, const CUtensorMap& map, uint32_t barrier, int x, int y, uint64_t) {
  copy_box(to, map, barrier, x, y);
}
inline void prefetch_map(const CUtensorMap&) {}
inline void copy_row(uint32_t to, const void* from, int bytes, uint32_t barrier, uint64_t) {
  if (to % 16 || reinterpret_cast<uintptr_t>(from) % 16 || bytes % 16) std::abort();
  std::memcpy(emulation::shared_memory + to, from, bytes);
  barrier_of(emulation::rank(), barrier).bytes -= bytes;
  end_phase(barrier_of(emulation::rank(), barrier));
}
inline uint64_t evict_first_policy() { return 1; }
constexpr uint64_t kUsualPolicy = 2;
inline void fence_async_proxy() {}

template <int N>
void give_up_registers() {}
template <int N>
void take_registers() {}

template <int kSize>
struct Place {
  int stage = 0, parity = 0;
  void advance() {
    stage = stage + 1 == kSize ? 0 : stage + 1;
    parity ^= stage == 0;
  }
};

inline void sync_named(int id, int threads) { emulation::wait(emulation::cta().named[id], threads); }

inline uint32_t address(const void* p) { return __cvta_generic_to_shared(p); }
inline void meet_cluster() {
  emulation::wait(emulation::cluster, emulation::threads);
}

// Four 8x8 matrices, of which lane 8 i + r says where row r of matrix i goes.
inline void store_matrices(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  emulation::exchange({to, a, b, c, d}, [](auto& slots) {
    const int lane = emulation::lane();
    for (int matrix = 0; matrix < 4; ++matrix) {
      const uint32_t row = slots[matrix * 8 + lane / 4][0];
      std::memcpy(emulation::shared_memory + row + lane % 4 * 4, &slots[lane][1 + matrix], 4);
    }
  });
}

}  // namespace sluice
