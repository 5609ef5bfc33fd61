// The paged cache of a layer, of float32 or of FP8 (e4m3) with a scale for each head.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

extern "C" {

// Field for field the struct of kernels/cpu.py.
struct LayerCache {
  void *keys, *values;  // [blocks, block_size, num_kv_heads, head_dim]; one where keys are values
  const float *key_scales, *value_scales;  // [num_kv_heads] of a cache in FP8; null: it is float32
};
}

namespace {

inline float from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// e4m3: a sign, four bits of exponent biased by 7, three of mantissa; no infinities.
inline float from_fp8(uint8_t stored) {
  const uint32_t magnitude = stored & 0x7f;
  const float normal = from_bits((magnitude << 20) + (120u << 23));
  const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-9f;
  float x = magnitude < 8 ? subnormal : normal;
  x = magnitude == 0x7f ? NAN : x;
  return stored & 0x80 ? -x : x;
}

// To the nearest, of two as near the even one; what is beyond 448 becomes 448.
inline uint8_t to_fp8(float x) {
  const float magnitude = std::fabs(x);
  uint32_t bits;
  std::memcpy(&bits, &magnitude, sizeof bits);
  const uint32_t normal = ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (120u << 3);
  // The float next to 16384 is 2^-9 away, as far as subnormals are from each other.
  const float shifted = magnitude + 16384.0f;
  uint32_t subnormal;
  std::memcpy(&subnormal, &shifted, sizeof subnormal);
  subnormal -= 0x46800000u;
  uint32_t stored = magnitude < 0x1p-6f ? subnormal : normal;
  stored = magnitude >= 448.0f ? 0x7e : stored;
  stored = magnitude != magnitude ? 0x7f : stored;
  return static_cast<uint8_t>(stored | (std::signbit(x) ? 0x80 : 0));
}

// Writes one head of a token.
inline void store_head(void* cache, const float* scales, int64_t at, int64_t head, const float* x,
                       int64_t dim) {
  if (scales == nullptr) {
    std::memcpy(static_cast<float*>(cache) + at, x, dim * sizeof(float));
    return;
  }
  uint8_t* to = static_cast<uint8_t*>(cache) + at;
  const float scale = scales[head];
#pragma omp simd
  for (int64_t i = 0; i < dim; ++i) to[i] = to_fp8(x[i] / scale);
}

// Reads some neighbouring heads of the keys or values, a block at a time.
class BlockReader {
 public:
  BlockReader(const void* cells, const float* scales, int64_t block_size, int64_t all_heads,
              int64_t first_head, int64_t num_heads, int64_t dim)
      : cells(cells),
        scales(scales),
        block_size(block_size),
        all_heads(all_heads),
        first_head(first_head),
        num_heads(num_heads),
        dim(dim) {}

  // Floats between two tokens of what `block` gives.
  int64_t stride() const { return (scales == nullptr ? all_heads : num_heads) * dim; }

  // The first head of the first of `count` tokens, in the cache itself or in the buffer, which
  // takes block_size * num_heads * dim.
  const float* block(int64_t id, int64_t count, float* buffer) const {
    const int64_t at = start(id);
    if (scales == nullptr) return static_cast<const float*>(cells) + at;
    const uint8_t* from = static_cast<const uint8_t*>(cells) + at;
    for (int64_t token = 0; token < count; ++token)
      for (int64_t head = 0; head < num_heads; ++head) {
        const float scale = scales[first_head + head];
        const uint8_t* stored = from + (token * all_heads + head) * dim;
        float* to = buffer + (token * num_heads + head) * dim;
#pragma omp simd
        for (int64_t i = 0; i < dim; ++i) to[i] = from_fp8(stored[i]) * scale;
      }
    return buffer;
  }

  void prefetch(int64_t id) const {
    const int64_t width = scales == nullptr ? sizeof(float) : 1;
    const char* from = static_cast<const char*>(cells) + start(id) * width;
    if (num_heads == all_heads)
      prefetch_bytes(from, block_size * all_heads * dim * width);
    else
      for (int64_t token = 0; token < block_size; ++token)
        prefetch_bytes(from + token * all_heads * dim * width, num_heads * dim * width);
  }

 private:
  const void* cells;
  const float* scales;
  const int64_t block_size, all_heads, first_head, num_heads, dim;

  int64_t start(int64_t id) const { return (id * block_size * all_heads + first_head) * dim; }

  static void prefetch_bytes(const char* from, int64_t count) {
    for (int64_t i = 0; i < count; i += 64) __builtin_prefetch(from + i, 0, 2);
  }
};

}  // namespace
