// Registers the matrix products of 16-bit floats with torch.

#include "binding/bind_layer.h"
#include "binding/bind_linear.h"
#include "gemm/skinny_linear.cuh"
#include "gemm/wide_linear.cuh"

namespace {

using at::Tensor;
using sluice::check;
using sluice::is_bf16;

// With a weight [features, k] of x's type.
template <typename Product>
Product plain(const Tensor& out, const Tensor& x, const Tensor& weight,
              const std::optional<Tensor>& bias, bool gated) {
  const auto p = sluice::linear_of<Product>(out, x, weight, bias, gated, 64);
  TORCH_CHECK(x.scalar_type() == out.scalar_type() && weight.scalar_type() == x.scalar_type() &&
                  weight.dim() == 2 && weight.size(1) == p.k,
              "weight must be [features, k], and x, weight and out of one type");
  return p;
}

}  // namespace

namespace sluice::bindings {

void skinny_linear(Tensor out, const Tensor& x, const Tensor& weight,
                   const std::optional<Tensor>& bias, bool gated, int64_t warps) {
  auto p = plain<sluice::SkinnyLinear>(out, x, weight, bias, gated);
  TORCH_CHECK(warps == 4 || warps == 8 || warps == 16, "warps must be 4, 8 or 16, got ", warps);
  p.warps = warps;
  TORCH_CHECK(p.tokens <= sluice::kMaxSkinnyTokens, "at most ", sluice::kMaxSkinnyTokens,
              " tokens, got ", p.tokens);
  const c10::cuda::CUDAGuard guard(x.device());
  check(sluice::skinny_linear(p, is_bf16(x), c10::cuda::getCurrentCUDAStream()), "skinny_linear");
}

void wide_linear(Tensor out, const Tensor& x, const Tensor& weight,
                 const std::optional<Tensor>& bias, bool gated, int64_t width) {
  auto p = plain<sluice::WideLinear>(out, x, weight, bias, gated);
  TORCH_CHECK(width == 192 || width == 224 || width == 256, "width must be 192, 224 or 256, got ",
              width);
  p.width = width;
  const c10::cuda::CUDAGuard guard(x.device());
  check(sluice::wide_linear(p, is_bf16(x), c10::cuda::getCurrentCUDAStream()), "wide_linear");
}

}  // namespace sluice::bindings

TORCH_LIBRARY_FRAGMENT(sluice_cuda, m) {
  m.def(
      "skinny_linear(Tensor(a!) out, Tensor x, Tensor weight, Tensor? bias, bool gated, "
      "int warps) -> ()");
  m.def(
      "wide_linear(Tensor(a!) out, Tensor x, Tensor weight, Tensor? bias, bool gated, "
      "int width) -> ()");
}

TORCH_LIBRARY_IMPL(sluice_cuda, CUDA, m) {
  m.impl("skinny_linear", &sluice::bindings::skinny_linear);
  m.impl("wide_linear", &sluice::bindings::wide_linear);
}
