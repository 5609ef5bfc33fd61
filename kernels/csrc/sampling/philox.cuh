// Philox4x32-10 (Salmon et al., SC 2011) and the Gumbel noise of kernels/philox.py, bit for bit as
// far as the logarithm is.
#pragma once

#include <cstdint>

namespace sluice {

// Four words of random bits for the tokens 4 * group + (0, 1, 2, 3) of a request's position.
__device__ __forceinline__ uint4 random_words(uint64_t seed, uint32_t position, uint32_t group) {
  uint32_t c0 = group, c1 = position, c2 = 0, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t hi0 = __umulhi(c0, 0xD2511F53u), lo0 = c0 * 0xD2511F53u;
    const uint32_t hi1 = __umulhi(c2, 0xCD9E8D57u), lo1 = c2 * 0xCD9E8D57u;
    c0 = hi1 ^ c1 ^ k0;
    c2 = hi0 ^ c3 ^ k1;
    c1 = lo1;
    c3 = lo0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return make_uint4(c0, c1, c2, c3);
}

__device__ __forceinline__ uint32_t word_of(const uint4& words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

__device__ __forceinline__ float gumbel(uint32_t word) {
  const float uniform =
      fminf((__uint2float_rn(word) + 0.5f) * 0x1p-32f, 1.f - 0x1p-24f);
  return -logf(-log1pf(-uniform));
}

}  // namespace sluice
