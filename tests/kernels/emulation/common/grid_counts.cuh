// In place of the kernels' own: all CTAs of the grid are those of one cluster.
#pragma once

#include "warp.h"

namespace sluice {

inline void publish(int* count) { ++*count; }

inline void await_count(const int* count, int target) {
  emulation::wait_until([=] { return *count >= target; });
}


inline void set_shared(size_t at, int value) {
  *reinterpret_cast<int*>(emulation::shared_memory + at) = value;
}
inline void await_shared(size_t at, int target) {
  const auto* count = reinterpret_cast<const int*>(emulation::shared_memory + at);
  await_count(count, target);
}

}  // namespace sluice
