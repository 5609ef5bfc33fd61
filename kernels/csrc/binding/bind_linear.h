// What the bindings of matrix products share.
#pragma once

#include "binding/bind.h"

namespace sluice {

inline bool is_bf16(const at::Tensor& t) { return t.scalar_type() == at::kBFloat16; }

// What all products take, checked: out = x weight^T + bias, of bfloat16 or float16, for x of any
// type with rows of k elements and a weight of any format with a row for each feature.
template <typename Product>
Product linear_of(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias, bool gated, int64_t k_multiple) {
  const auto dtype = out.scalar_type();
  TORCH_CHECK(dtype == at::kBFloat16 || dtype == at::kHalf, "out must be bfloat16 or float16");
  TORCH_CHECK(out.is_cuda() && x.is_cuda() && weight.is_cuda(),
              "x, weight and out must be on a GPU");
  TORCH_CHECK(x.dim() == 2 && x.stride(1) == 1 && x.stride(0) * x.element_size() % 16 == 0,
              "x must be [tokens, k], its rows multiples of 16 bytes apart");
  const int64_t tokens = x.size(0), k = x.size(1), features = weight.size(0);
  TORCH_CHECK(weight.is_contiguous() && out.is_contiguous() && out.dim() == 2 &&
                  out.size(0) == tokens && out.size(1) == (gated ? features / 2 : features),
              "weight must be [features, ...], out [tokens, features] (or half)");
  TORCH_CHECK(features % 16 == 0 && k % k_multiple == 0,
              "features must be a multiple of 16 and k of ", k_multiple, ", got ", features,
              " and ", k);
  TORCH_CHECK(!bias || (bias->numel() == features && bias->is_contiguous() && bias->is_cuda() &&
                        bias->scalar_type() == dtype),
              "bias must have ", features, " elements of out's dtype");
  check_start(x, "x");
  check_start(weight, "weight");
  Product p = {};
  p.out = out.data_ptr();
  p.x = x.data_ptr();
  p.weight = weight.data_ptr();
  p.bias = bias ? bias->data_ptr() : nullptr;
  p.x_stride = x.stride(0);
  p.tokens = tokens;
  p.features = features;
  p.k = k;
  p.gated = gated;
  return p;
}

}  // namespace sluice
