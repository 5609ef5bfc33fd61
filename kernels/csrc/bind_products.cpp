// Registers the matrix products of 16-bit floats with torch.

#include "bind.h"
#include "skinny_linear.cuh"
#include "wide_linear.cuh"

namespace {

using at::Tensor;
using sluice::check;

// What all products take, checked.
template <typename Product>
Product common(const Tensor& out, const Tensor& x, const Tensor& weight,
               const std::optional<Tensor>& bias, bool gated) {
  const auto dtype = x.scalar_type();
  TORCH_CHECK(dtype == at::kBFloat16 || dtype == at::kHalf, "x must be bfloat16 or float16");
  for (const Tensor& t : {out, x, weight}) {
    TORCH_CHECK(t.is_cuda() && t.scalar_type() == dtype, "x, weight and out must be CUDA tensors of ",
                dtype);
  }
  const int64_t tokens = x.size(0), k = weight.size(1), features = weight.size(0);
  TORCH_CHECK(x.dim() == 2 && x.size(1) == k && x.stride(1) == 1 && weight.is_contiguous() &&
                  out.is_contiguous() && out.size(0) == tokens &&
                  out.size(1) == (gated ? features / 2 : features),
              "x must be [tokens, k], weight [features, k], out [tokens, features] (or half)");
  TORCH_CHECK(features % 16 == 0 && k % 64 == 0 && x.stride(0) % 8 == 0,
              "features must be a multiple of 16 and k of 64, got ", features, " and ", k);
  TORCH_CHECK(!bias || (bias->numel() == features && bias->is_contiguous() && bias->is_cuda() &&
                        bias->scalar_type() == dtype),
              "bias must have ", features, " elements");
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

bool is_bf16(const Tensor& x) { return x.scalar_type() == at::kBFloat16; }

void skinny_linear(Tensor out, const Tensor& x, const Tensor& weight,
                   const std::optional<Tensor>& bias, bool gated) {
  const auto p = common<sluice::SkinnyLinear>(out, x, weight, bias, gated);
  TORCH_CHECK(p.tokens <= sluice::kMaxSkinnyTokens, "at most ", sluice::kMaxSkinnyTokens,
              " tokens, got ", p.tokens);
  const c10::cuda::CUDAGuard guard(x.device());
  check(sluice::skinny_linear(p, is_bf16(x), c10::cuda::getCurrentCUDAStream()), "skinny_linear");
}

void wide_linear(Tensor out, const Tensor& x, const Tensor& weight,
                 const std::optional<Tensor>& bias, bool gated, int64_t width) {
  auto p = common<sluice::WideLinear>(out, x, weight, bias, gated);
  TORCH_CHECK(width == 192 || width == 224 || width == 256, "width must be 192, 224 or 256, got ",
              width);
  TORCH_CHECK(reinterpret_cast<uintptr_t>(p.x) % 16 == 0, "x must start at a multiple of 16 bytes");
  p.width = width;
  const c10::cuda::CUDAGuard guard(x.device());
  check(sluice::wide_linear(p, is_bf16(x), c10::cuda::getCurrentCUDAStream()), "wide_linear");
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(sluice_cuda, m) {
  m.def(
      "skinny_linear(Tensor(a!) out, Tensor x, Tensor weight, Tensor? bias, bool gated) -> ()");
  m.def(
      "wide_linear(Tensor(a!) out, Tensor x, Tensor weight, Tensor? bias, bool gated, "
      "int width) -> ()");
}

TORCH_LIBRARY_IMPL(sluice_cuda, CUDA, m) {
  m.impl("skinny_linear", &skinny_linear);
  m.impl("wide_linear", &wide_linear);
}
