// Rows of weights of eight or four bits, as the products of few tokens read and widen them: of each
// chunk of a row a thread takes 16 bytes, 16 or 32 weights that follow each other.
#pragma once

#include "common/vector.cuh"
#include "gemm/quantized_linear.cuh"
#include "gemm/skinny_output.cuh"
#include "gemm/widen.cuh"

namespace sluice {

// A format says what weights are widened to, what a chunk's share besides the weights themselves,
// and what a feature's sum is multiplied with.
template <typename T>
struct Fp8 {
  using Operand = T;
  static constexpr int kChunk = 64;  // elements of k that a warp takes at a time
  static constexpr bool kScalesChunks = false;

  struct Group {};
  static __device__ __forceinline__ Group group(const QuantizedLinear&, int, int) { return {}; }

  // Eight elements, the i-th eight of a thread's.
  static __device__ __forceinline__ void widen(uint32_t (&out)[4], const uint4& v, int i, Group) {
    widen_fp8<T>(out, v, i);
  }

  static __device__ __forceinline__ float scale(const QuantizedLinear& p, int feature) {
    return static_cast<const float*>(p.scales)[feature];
  }
};

// With a scale for each block: the sum over a chunk, which lies within one, is multiplied with it.
template <typename T>
struct Fp8Blocks {
  using Operand = T;
  static constexpr int kChunk = 64;
  static constexpr bool kScalesChunks = true;

  using Group = float;
  static __device__ __forceinline__ Group group(const QuantizedLinear& p, int feature, int k) {
    const int columns = (p.k + p.group_size - 1) / p.group_size;
    const int64_t row = feature / p.block_rows;
    return __ldg(static_cast<const float*>(p.scales) + row * columns + k / p.group_size);
  }

  static __device__ __forceinline__ void widen(uint32_t (&out)[4], const uint4& v, int i, Group) {
    widen_fp8<T>(out, v, i);
  }

  static __device__ __forceinline__ float scale(const QuantizedLinear&, int) { return 1.f; }
};

template <typename T>
struct Int4 {
  using Operand = T;
  static constexpr int kChunk = 128;
  static constexpr bool kScalesChunks = false;

  using Group = uint32_t;  // scale and zero
  static __device__ __forceinline__ Group group(const QuantizedLinear& p, int feature, int k) {
    const int64_t row = static_cast<int64_t>(feature) * (p.k / p.group_size);
    return __ldg(static_cast<const uint32_t*>(p.scales) + row + k / p.group_size);
  }

  static __device__ __forceinline__ void widen(uint32_t (&out)[4], const uint4& v, int i,
                                               Group group) {
    widen_int4<T>(out, v, i, group);
  }

  static __device__ __forceinline__ float scale(const QuantizedLinear&, int) { return 1.f; }
};

// Two of a CTA's sixteen rows, from where lane 4 * g + t reads them: g and g + 8.
template <typename Format>
struct RowPair {
  static constexpr int kElements = Format::kChunk / 4;  // of a thread in a chunk

  int num_chunks, t;
  int low, high;  // features
  const char *low_row, *high_row;

  __device__ __forceinline__ RowPair(const QuantizedLinear& p, int g, int t)
      : num_chunks(p.k / Format::kChunk), t(t) {
    low = skinny_feature(g, p.features, p.gated);
    high = skinny_feature(g + 8, p.features, p.gated);
    const int64_t row_bytes = static_cast<int64_t>(num_chunks) * 64;
    low_row = static_cast<const char*>(p.weight) + low * row_bytes + t * 16;
    high_row = static_cast<const char*>(p.weight) + high * row_bytes + t * 16;
  }
};

// What a warp has under way of both rows.
template <typename Format, int kWarps, int kUnroll>
struct Chunks {
  static_assert(kUnroll % 2 == 0);

  uint4 low[kUnroll], high[kUnroll];
  typename Format::Group low_group[kUnroll], high_group[kUnroll];

  // They come in pairs of neighbours, which are one line of memory in each row.
  static __device__ __forceinline__ int place(int first, int warp, int u) {
    return first + u / 2 * 2 * kWarps + warp * 2 + u % 2;
  }

  __device__ __forceinline__ void load(const QuantizedLinear& p, const RowPair<Format>& rows,
                                       int first, int warp) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int chunk = place(first, warp, u);
      if (chunk >= rows.num_chunks) break;
      low[u] = load_once(rows.low_row + chunk * 64);
      high[u] = load_once(rows.high_row + chunk * 64);
      const int k = chunk * Format::kChunk + rows.t * RowPair<Format>::kElements;
      low_group[u] = Format::group(p, rows.low, k);
      high_group[u] = Format::group(p, rows.high, k);
    }
  }
};

}  // namespace sluice
