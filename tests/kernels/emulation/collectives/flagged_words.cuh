// Of two processes that share memory, in place of the header of this name.
#pragma once

#include <sched.h>

#include <cstdint>

namespace sluice {

inline void send(void* to, uint32_t a, uint32_t b, uint32_t flag) {
  const uint64_t beside = static_cast<uint64_t>(flag) << 32;
  auto* words = static_cast<uint64_t*>(to);
  __atomic_store_n(words, a | beside, __ATOMIC_RELAXED);
  __atomic_store_n(words + 1, b | beside, __ATOMIC_RELAXED);
}

inline uint4 look(const void* from) {
  sched_yield();  // The other process may wait for this one's core.
  const auto* words = static_cast<const uint64_t*>(from);
  const uint64_t first = __atomic_load_n(words, __ATOMIC_RELAXED);
  const uint64_t second = __atomic_load_n(words + 1, __ATOMIC_RELAXED);
  return {static_cast<uint32_t>(first), static_cast<uint32_t>(first >> 32),
          static_cast<uint32_t>(second), static_cast<uint32_t>(second >> 32)};
}

inline void release(uint32_t* to, uint32_t flag) { __atomic_store_n(to, flag, __ATOMIC_RELEASE); }

inline uint32_t acquired(const uint32_t* from) {
  sched_yield();
  return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}

}  // namespace sluice
