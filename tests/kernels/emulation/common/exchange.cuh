// In place of the kernels' own: who looks at a place lets the others run first.
#pragma once

#include "common/spin_limit.cuh"
#include "common/vector.cuh"
#include "warp.h"

namespace sluice {

inline uint32_t greatest(uint32_t a, uint32_t b, uint32_t c) {
  const auto of = [&](int shift) {
    return std::max({a >> shift & 0xffff, b >> shift & 0xffff, c >> shift & 0xffff}) << shift;
  };
  return of(0) | of(16);
}
inline uint32_t greatest_of(const uint32_t (&words)[4]) {
  return greatest(greatest(words[0], words[1], words[2]), words[3], 0);
}
inline bool lacks_half(uint32_t greatest) {
  return greatest >> 16 == 0xffff || (greatest & 0xffff) == 0xffff;
}
inline bool lacks(float x) { return emulation::bits<uint32_t>(x) == ~0u; }
inline bool lacks(float2 a, float4 b) {
  return lacks(a.x) || lacks(a.y) || lacks(b.x) || lacks(b.y) || lacks(b.z) || lacks(b.w);
}

// What is not empty is written once.
template <typename T>
void hand_over(T* to, T x) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    if (reinterpret_cast<const uint8_t*>(to)[i] != 0xff) std::abort();
  }
  *to = x;
}

inline void look(uint32_t (&at)[4], const void* from) {
  emulation::yield();
  std::memcpy(at, from, sizeof(at));
}
template <typename T>
void look(T& x, const T* from) {
  emulation::yield();
  x = *from;
}

template <typename T>
void look_if(bool condition, T& x, const T* from) {
  if (condition) look(x, from);
}

inline int claim(int* count) { return ++*count; }
inline void empty(void* at) { std::memset(at, 0xff, 16); }
inline void empty(float2* at) { std::memset(at, 0xff, sizeof(*at)); }

}  // namespace sluice
