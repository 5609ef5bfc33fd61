// Registers the products with quantized weights with torch.

#include "binding/bind_linear.h"
#include "gemm/quantized_linear.cuh"

namespace {

using at::Tensor;
using sluice::check;
using sluice::is_bf16;

sluice::QuantizedLinear quantized(const Tensor& out, const Tensor& x, const Tensor& weight,
                                  const Tensor& scales, const std::optional<Tensor>& bias,
                                  bool gated, int64_t k_multiple) {
  auto p = sluice::linear_of<sluice::QuantizedLinear>(out, x, weight, bias, gated, k_multiple);
  TORCH_CHECK(scales.is_cuda() && scales.is_contiguous(), "scales must be contiguous, on a GPU");
  p.scales = scales.data_ptr();
  return p;
}

void check_skinny(const sluice::QuantizedLinear& p, const Tensor& out, const Tensor& x) {
  TORCH_CHECK(x.scalar_type() == out.scalar_type() && p.tokens <= sluice::kMaxSkinnyTokens,
              "x must be of out's dtype, with at most ", sluice::kMaxSkinnyTokens, " tokens, got ",
              p.tokens);
}

void check_split(const sluice::QuantizedLinear& p, int64_t split) {
  TORCH_CHECK(split >= 0 && split <= 8 && split <= p.k / 128,
              "split must be 0 to 8 and at most k / 128, got ", split);
}

void skinny_fp8_linear(Tensor out, const Tensor& x, const Tensor& weight, const Tensor& scale,
                       const std::optional<Tensor>& bias, bool gated, int64_t block_rows,
                       int64_t block_columns) {
  auto p = quantized(out, x, weight, scale, bias, gated, 64);
  check_skinny(p, out, x);
  TORCH_CHECK(weight.scalar_type() == at::kFloat8_e4m3fn && weight.size(1) == p.k,
              "weight must be [features, k] float8_e4m3fn");
  if (block_rows == 0) {
    TORCH_CHECK(scale.scalar_type() == at::kFloat && scale.numel() == p.features,
                "scale must be [features] float32");
  } else {
    p.block_rows = block_rows;
    p.group_size = block_columns;
    TORCH_CHECK(block_rows > 0 && block_columns > 0 && block_columns % 64 == 0,
                "blocks must have a multiple of 64 columns");
    TORCH_CHECK(scale.scalar_type() == at::kFloat && scale.dim() == 2 &&
                    scale.size(0) == (p.features + block_rows - 1) / block_rows &&
                    scale.size(1) == (p.k + block_columns - 1) / block_columns,
                "scale must be [features / block_rows, k / block_columns] float32");
  }
  const c10::cuda::CUDAGuard guard(x.device());
  check(sluice::skinny_fp8_linear(p, is_bf16(out), c10::cuda::getCurrentCUDAStream()),
        "skinny_fp8_linear");
}

sluice::QuantizedLinear int4(const Tensor& out, const Tensor& x, const Tensor& packed,
                             const Tensor& groups, const std::optional<Tensor>& bias, bool gated) {
  auto p = quantized(out, x, packed, groups, bias, gated, 128);
  TORCH_CHECK(packed.scalar_type() == at::kInt && packed.size(1) * 8 == p.k,
              "packed must be [features, k / 8] int32");
  TORCH_CHECK(x.scalar_type() == out.scalar_type() && groups.scalar_type() == x.scalar_type() &&
                  groups.dim() == 3 && groups.size(0) == p.features && groups.size(2) == 2,
              "groups must be [features, num_groups, 2], of the dtype of x and out");
  p.group_size = p.k / groups.size(1);
  TORCH_CHECK(p.group_size % 32 == 0 && p.group_size * groups.size(1) == p.k,
              "groups must be of a multiple of 32 elements");
  return p;
}

void skinny_int4_linear(Tensor out, const Tensor& x, const Tensor& packed, const Tensor& groups,
                        const std::optional<Tensor>& bias, bool gated) {
  const auto p = int4(out, x, packed, groups, bias, gated);
  check_skinny(p, out, x);
  const c10::cuda::CUDAGuard guard(x.device());
  check(sluice::skinny_int4_linear(p, is_bf16(out), c10::cuda::getCurrentCUDAStream()),
        "skinny_int4_linear");
}

void tiled_int4_linear(Tensor out, const Tensor& x, const Tensor& packed, const Tensor& groups,
                       const std::optional<Tensor>& bias, bool gated, int64_t split) {
  const auto p = int4(out, x, packed, groups, bias, gated);
  check_split(p, split);
  TORCH_CHECK(p.group_size == 32 || p.group_size == 64 || p.group_size % 128 == 0,
              "groups must be of 32, 64 or a multiple of 128 elements, got ", p.group_size);
  const c10::cuda::CUDAGuard guard(x.device());
  check(sluice::tiled_int4_linear(p, split, is_bf16(out), c10::cuda::getCurrentCUDAStream()),
        "tiled_int4_linear");
}

void tiled_fp8_linear(Tensor out, const Tensor& x, const Tensor& x_scale, const Tensor& weight,
                      const Tensor& scale, const std::optional<Tensor>& bias, bool gated,
                      int64_t block_rows, int64_t split) {
  auto p = quantized(out, x, weight, scale, bias, gated, 128);
  check_split(p, split);
  TORCH_CHECK(x.scalar_type() == at::kFloat8_e4m3fn &&
                  weight.scalar_type() == at::kFloat8_e4m3fn && weight.size(1) == p.k,
              "x must be [tokens, k] and weight [features, k], both float8_e4m3fn");
  const int64_t pieces = block_rows > 0 ? p.k / 128 : 1;
  const int64_t blocks = block_rows > 0 ? (p.features + block_rows - 1) / block_rows : p.features;
  TORCH_CHECK(scale.scalar_type() == at::kFloat && scale.numel() == blocks * pieces,
              "scale must be float32 [features] or [features / block_rows, k / 128]");
  TORCH_CHECK(x_scale.is_cuda() && x_scale.scalar_type() == at::kFloat &&
                  x_scale.numel() == p.tokens * pieces,
              "x_scale must be float32 [tokens] or with blocks [k / 128, tokens]");
  if (block_rows > 0) {
    TORCH_CHECK(x_scale.dim() == 2 && x_scale.size(0) == pieces && x_scale.stride(1) == 1 &&
                    x_scale.stride(0) % 64 == 0 && x_scale.stride(0) >= p.tokens,
                "x_scale must have rows of a multiple of 64 elements");
    p.x_scale_stride = x_scale.stride(0);
  } else {
    TORCH_CHECK(x_scale.is_contiguous(), "x_scale must be contiguous");
  }
  p.block_rows = block_rows;
  p.x_scales = x_scale.data_ptr<float>();
  const c10::cuda::CUDAGuard guard(x.device());
  check(sluice::tiled_fp8_linear(p, split, is_bf16(out), c10::cuda::getCurrentCUDAStream()),
        "tiled_fp8_linear");
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(sluice_cuda, m) {
  m.def(
      "skinny_fp8_linear(Tensor(a!) out, Tensor x, Tensor weight, Tensor scale, Tensor? bias, "
      "bool gated, int block_rows, int block_columns) -> ()");
  m.def(
      "skinny_int4_linear(Tensor(a!) out, Tensor x, Tensor packed, Tensor groups, Tensor? bias, "
      "bool gated) -> ()");
  m.def(
      "tiled_int4_linear(Tensor(a!) out, Tensor x, Tensor packed, Tensor groups, Tensor? bias, "
      "bool gated, int split) -> ()");
  m.def(
      "tiled_fp8_linear(Tensor(a!) out, Tensor x, Tensor x_scale, Tensor weight, Tensor scale, "
      "Tensor? bias, bool gated, int block_rows, int split) -> ()");
}

TORCH_LIBRARY_IMPL(sluice_cuda, CUDA, m) {
  m.impl("skinny_fp8_linear", &skinny_fp8_linear);
  m.impl("skinny_int4_linear", &skinny_int4_linear);
  m.impl("tiled_int4_linear", &tiled_int4_linear);
  m.impl("tiled_fp8_linear", &tiled_fp8_linear);
}
