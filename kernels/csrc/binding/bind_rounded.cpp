// Registers the kernels that leave rows in FP8 with torch.

#include "binding/bind.h"
#include "quantization/quantize_rows.cuh"

namespace {

using at::Tensor;
using sluice::check;
using sluice::check_start;
using sluice::dtype_of;

sluice::RoundedRows rounded_rows(const Tensor& out, const Tensor& scales, const Tensor& x,
                                 int64_t parts) {
  const int64_t rows = x.size(0), width = x.size(1) / parts;
  TORCH_CHECK(x.is_cuda() && x.dim() == 2 && x.stride(1) == 1 &&
                  x.stride(0) * x.element_size() % 16 == 0 && x.size(1) % parts == 0,
              "x must be rows of 16-byte aligned memory on a GPU");
  TORCH_CHECK(out.is_cuda() && out.scalar_type() == at::kFloat8_e4m3fn && out.is_contiguous() &&
                  out.dim() == 2 && out.size(0) == rows && out.size(1) == width,
              "out must be contiguous float8_e4m3fn [rows, width]");
  TORCH_CHECK(scales.is_cuda() && scales.scalar_type() == at::kFloat && scales.is_contiguous() &&
                  scales.numel() == rows,
              "scales must be contiguous float32 [rows]");
  const int64_t bytes = width * x.element_size();
  TORCH_CHECK(bytes % 16 == 0 && bytes <= 65536,
              "rows must be multiples of 16 bytes and at most 64 KiB, got ", bytes);
  check_start(x, "x");
  check_start(out, "out");
  return {out.data_ptr(), scales.data_ptr<float>(), static_cast<int>(rows),
          static_cast<int>(width)};
}

void round_rows(Tensor out, Tensor scales, const Tensor& x) {
  const auto p = rounded_rows(out, scales, x, 1);
  const c10::cuda::CUDAGuard guard(x.device());
  check(sluice::round_rows(p, x.data_ptr(), x.stride(0), dtype_of(x, "x"),
                           c10::cuda::getCurrentCUDAStream()),
        "round_rows");
}

void rms_norm_rounded(Tensor out, Tensor scales, const Tensor& x,
                      const std::optional<Tensor>& residual, const Tensor& weight, double eps) {
  const auto p = rounded_rows(out, scales, x, 1);
  TORCH_CHECK(weight.is_cuda() && weight.scalar_type() == x.scalar_type() &&
                  weight.numel() == p.width && weight.is_contiguous(),
              "weight must be [", p.width, "] of x's dtype");
  TORCH_CHECK(!residual || (residual->is_cuda() && residual->scalar_type() == x.scalar_type() &&
                            residual->sizes() == x.sizes() && residual->is_contiguous()),
              "residual must be contiguous, like x");
  check_start(weight, "weight");
  if (residual) check_start(*residual, "residual");
  const c10::cuda::CUDAGuard guard(x.device());
  sluice::RmsNorm norm = {};
  norm.x = x.data_ptr();
  norm.residual = residual ? residual->data_ptr() : nullptr;
  norm.weight = weight.data_ptr();
  norm.x_stride = x.stride(0);
  norm.rows = p.rows;
  norm.width = p.width;
  norm.eps = eps;
  check(sluice::rms_norm_rounded(p, norm, dtype_of(x, "x"), c10::cuda::getCurrentCUDAStream()),
        "rms_norm_rounded");
}

void silu_mul_rounded(Tensor out, Tensor scales, const Tensor& x) {
  const auto p = rounded_rows(out, scales, x, 2);
  TORCH_CHECK(x.is_contiguous(), "x must be contiguous [rows, 2 * width]");
  const c10::cuda::CUDAGuard guard(x.device());
  check(sluice::silu_mul_rounded(p, x.data_ptr(), dtype_of(x, "x"),
                                 c10::cuda::getCurrentCUDAStream()),
        "silu_mul_rounded");
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(sluice_cuda, m) {
  m.def("round_rows(Tensor(a!) out, Tensor(b!) scales, Tensor x) -> ()");
  m.def(
      "rms_norm_rounded(Tensor(a!) out, Tensor(b!) scales, Tensor x, Tensor(c!)? residual, "
      "Tensor weight, float eps) -> ()");
  m.def("silu_mul_rounded(Tensor(a!) out, Tensor(b!) scales, Tensor x) -> ()");
}

TORCH_LIBRARY_IMPL(sluice_cuda, CUDA, m) {
  m.impl("round_rows", &round_rows);
  m.impl("rms_norm_rounded", &rms_norm_rounded);
  m.impl("silu_mul_rounded", &silu_mul_rounded);
}
