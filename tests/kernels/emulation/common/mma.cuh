// In place of the kernels' own: what the instructions do by their description in PTX.
#pragma once

#include <deque>
#include <map>
#include <vector>

#include "warp.h"

namespace sluice {

struct Copy {
  uint8_t* to;
  uint8_t bytes[16];
};

// The groups of copies that a thread has under way; the last one is not committed yet.
inline std::deque<std::vector<Copy>>& copies() {
  static std::vector<std::deque<std::vector<Copy>>> of_threads;
  while (static_cast<int>(of_threads.size()) <= emulation::current) of_threads.emplace_back(1);
  return of_threads[emulation::current];
}

// Copies read as early as they may and write as late: when their thread waits for them.
inline std::map<uint64_t, int> copies_by_policy;
inline void cp_async_16(uint32_t to, const void* from, bool valid, uint64_t policy = 0) {
  ++copies_by_policy[policy];
  Copy copy = {emulation::shared_memory + to};
  if (valid) std::memcpy(copy.bytes, from, sizeof(copy.bytes));
  copies().back().push_back(copy);
}
inline void cp_async_commit() { copies().emplace_back(); }
template <int N>
void cp_async_wait() {
  auto& groups = copies();
  for (; groups.size() > N + 1; groups.pop_front()) {
    for (const auto& copy : groups.front()) std::memcpy(copy.to, copy.bytes, sizeof(copy.bytes));
  }
}
inline void prefetch_l2(const void*) {}

inline int arrive(int* count) { return (*count)++; }  // one CTA after the other
inline int read_now(const int* at) { return *at; }

template <int N>
void load_shared(uint32_t (&words)[N], uint32_t at) {
  std::memcpy(words, emulation::shared_memory + at, sizeof(words));
}

inline void store_shared(uint32_t at, const uint32_t (&words)[4]) {
  std::memcpy(emulation::shared_memory + at, words, sizeof(words));
}

// Element (row, column) of matrix `index`, of whose rows the lanes show the addresses.
template <typename Slots>
uint32_t element(const Slots& slots, int index, int row, int column) {
  uint16_t x;
  std::memcpy(&x, emulation::shared_memory + slots[index * 8 + row][0] + column * 2, 2);
  return x;
}

template <bool kTransposed>
void load_matrices(uint32_t (&r)[4], uint32_t at) {
  const int lane = emulation::lane(), row = lane / 4, column = lane % 4 * 2;
  emulation::exchange({at}, [&](auto& slots) {
    for (int i = 0; i < 4; ++i) {
      r[i] = 0;
      for (int e = 0; e < 2; ++e) {
        r[i] |= (kTransposed ? element(slots, i, column + e, row)
                             : element(slots, i, row, column + e))
                << 16 * e;
      }
    }
  });
}
inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t at) { load_matrices<false>(r, at); }
inline void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t at) { load_matrices<true>(r, at); }

inline uint32_t transposed(uint32_t pair) {
  const int lane = emulation::lane();
  uint32_t out = 0;
  emulation::exchange({pair}, [&](auto& slots) {
    for (int e = 0; e < 2; ++e) {
      const int row = lane % 4 * 2 + e, column = lane / 4;
      out |= (slots[row * 4 + column / 2][0] >> column % 2 * 16 & 0xffff) << 16 * e;
    }
  });
  return out;
}

template <typename T>
struct Half {
  static float wide(uint32_t pair, int e) {
    return static_cast<float>(emulation::bits<T>(static_cast<uint16_t>(pair >> 16 * e)));
  }
  static uint32_t pack(float lo, float hi) {
    return emulation::bits<uint16_t>(T(lo)) |
           static_cast<uint32_t>(emulation::bits<uint16_t>(T(hi))) << 16;
  }
  static float2 unpack(uint32_t pair) { return {wide(pair, 0), wide(pair, 1)}; }
  static void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    const int lane = emulation::lane();
    emulation::exchange({a[0], a[1], a[2], a[3], b0, b1}, [&](auto& slots) {
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (int k = 0; k < 16; ++k) {
          const uint32_t left = slots[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
          const uint32_t right = slots[column * 4 + k % 8 / 2][4 + k / 8];
          c[i] += wide(left, k % 2) * wide(right, k % 2);
        }
      }
    });
  }
};

}  // namespace sluice
