// A library with one function for test_emulated_products.py: the products of few tokens.

#include "gemm/quantized_linear.cuh"
#include "gemm/skinny_linear.cuh"

enum Format { kPlain, kFp8, kInt4 };

struct Call {
  void *out, *x, *weight, *scales, *bias;
  int tokens, features, k, x_stride, group_size, block_rows, gated, bf16, format, warps;
};

template <typename Product>
Product product_of(const Call& c) {
  Product p = {};
  p.out = c.out;
  p.x = c.x;
  p.weight = c.weight;
  p.bias = c.bias;
  p.x_stride = c.x_stride;
  p.tokens = c.tokens;
  p.features = c.features;
  p.k = c.k;
  p.gated = c.gated;
  return p;
}

extern "C" int multiply(const Call& c) {
  if (c.format == kPlain) {
    auto p = product_of<sluice::SkinnyLinear>(c);
    p.warps = c.warps;
    return sluice::skinny_linear(p, c.bf16, nullptr);
  }
  auto p = product_of<sluice::QuantizedLinear>(c);
  p.scales = c.scales;
  p.group_size = c.group_size;
  p.block_rows = c.block_rows;
  return c.format == kFp8 ? sluice::skinny_fp8_linear(p, c.bf16, nullptr)
                          : sluice::skinny_int4_linear(p, c.bf16, nullptr);
}
