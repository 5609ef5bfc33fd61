// GEMMs with packed weights, for few rows as well as for many.
//
// A weight is cut into panels of kPanel output features, stored feature by feature of the input, so
// that a product reads it front to back. An element is summed over the input features in ascending
// order with one accumulator, whatever the number of rows.

#pragma once

#include <vector>

#include "cpu/rows.h"

extern "C" {

// Field for field the struct of kernels/cpu.py.
struct Linear {
  const float* packed;
  const float* bias;  // [out_features], or null
  int64_t out_features, in_features;
};
}

namespace {

constexpr int kPanel = 2 * kLanes;
// As many rows at once as there are registers for: two accumulators each.
constexpr int kTileRows = kLanes == 16 ? 8 : 4;
constexpr int64_t kDepth = 1024;    // Input features at a time: their part of a panel stays in L2.
constexpr int64_t kRowBlock = 256;  // Rows at a time: their part of x stays in L2.
constexpr int64_t kParallelProduct = 1 << 17;  // Multiplications below which threads cost more.
constexpr int64_t kPrefetch = 4096 / sizeof(float);

void pack_weight(float* packed, const float* weight, int64_t out_features, int64_t in_features) {
  for (int64_t first = 0; first < out_features; first += kPanel)
    for (int64_t k = 0; k < in_features; ++k)
      for (int64_t n = first; n < first + kPanel; ++n)
        *packed++ = n < out_features ? weight[n * in_features + k] : 0.0f;
}

// out[r, 0 .. kPanel) += x[r] . panel over `depth` input features; from zero if `fresh`.
template <int kRows>
inline void product_tile(float* out, int64_t out_stride, const float* x, int64_t x_stride,
                         const float* panel, int64_t depth, bool fresh) {
  Vector sums[kRows][2] = {};
  if (!fresh)
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      sums[r][0] = load(out + r * out_stride);
      sums[r][1] = load(out + r * out_stride + kLanes);
    }
  for (int64_t k = 0; k < depth; ++k, panel += kPanel) {
    const Vector first = load(panel), second = load(panel + kLanes);
    __builtin_prefetch(panel + kPrefetch);
    __builtin_prefetch(panel + kPrefetch + kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const float value = x[r * x_stride + k];
      sums[r][0] += value * first;
      sums[r][1] += value * second;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    store(out + r * out_stride, sums[r][0]);
    store(out + r * out_stride + kLanes, sums[r][1]);
  }
}

using ProductTile = void (*)(float*, int64_t, const float*, int64_t, const float*, int64_t, bool);
constexpr ProductTile kProductTiles[] = {nullptr,         product_tile<1>, product_tile<2>,
                                         product_tile<3>, product_tile<4>, product_tile<5>,
                                         product_tile<6>, product_tile<7>, product_tile<8>};

// One panel of the product: kPanel columns of out (fewer in the last one).
inline void linear_panel(float* out, const float* x, const Linear& linear, int64_t rows,
                         int64_t panel) {
  const int64_t k_size = linear.in_features, first = panel * kPanel;
  const int64_t width = std::min<int64_t>(kPanel, linear.out_features - first);
  const bool whole = width == kPanel;
  float narrow[kRowBlock * kPanel];  // Where a panel that sticks out of out is computed.
  float* result = whole ? out + first : narrow;
  const int64_t stride = whole ? linear.out_features : kPanel;
  for (int64_t k = 0; k < k_size; k += kDepth) {
    const float* weights = linear.packed + (panel * k_size + k) * kPanel;
    const int64_t depth = std::min(kDepth, k_size - k);
    for (int64_t r = 0; r < rows; r += kTileRows)
      kProductTiles[std::min<int64_t>(kTileRows, rows - r)](
          result + r * stride, stride, x + r * k_size + k, k_size, weights, depth, k == 0);
  }
  if (whole && linear.bias == nullptr) return;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t n = 0; n < width; ++n)
      out[r * linear.out_features + first + n] =
          result[r * stride + n] + (linear.bias == nullptr ? 0.0f : linear.bias[first + n]);
}

}  // namespace
