// The operations that the bindings of a decoder layer are made of: those of the same names that
// Python can call, with the same checks.
#pragma once

#include <ATen/core/Tensor.h>

namespace sluice::bindings {

void rms_norm(at::Tensor out, const at::Tensor& x, const std::optional<at::Tensor>& residual,
              const at::Tensor& weight, double eps, const std::optional<at::Tensor>& inner);

void silu_mul(at::Tensor out, const at::Tensor& x);

void rope_and_cache(at::Tensor q, const at::Tensor& k, const at::Tensor& v, at::Tensor k_cache,
                    at::Tensor v_cache, const at::Tensor& cos_sin, const at::Tensor& positions,
                    const at::Tensor& slots, const std::optional<at::Tensor>& q_norm,
                    const std::optional<at::Tensor>& k_norm, double eps,
                    const std::optional<at::Tensor>& k_scale,
                    const std::optional<at::Tensor>& v_scale);

void skinny_linear(at::Tensor out, const at::Tensor& x, const at::Tensor& weight,
                   const std::optional<at::Tensor>& bias, bool gated, int64_t warps);

void wide_linear(at::Tensor out, const at::Tensor& x, const at::Tensor& weight,
                 const std::optional<at::Tensor>& bias, bool gated, int64_t width);

void shrink_lora(at::Tensor low, const at::Tensor& x, const at::Tensor& down,
                     const at::Tensor& up, const at::Tensor& ranks, const at::Tensor& ends,
                     const at::Tensor& slots, const at::Tensor& tokens);

void expand_lora(at::Tensor out, const at::Tensor& low, const at::Tensor& down,
                     const at::Tensor& up, const at::Tensor& ranks, const at::Tensor& ends,
                     const at::Tensor& slots, const at::Tensor& tokens);

}  // namespace sluice::bindings
