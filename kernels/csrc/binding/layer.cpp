// A decoder layer as two calls, before and after its attention. They launch what the single
// operations launch, in the same order; but Python and torch's dispatcher take more of the host's
// time than a launch does, and a step with a prompt of a hundred tokens is no longer than that.

#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <torch/library.h>

#include "binding/torch.h"
#include "lora/lora.cuh"

namespace {

using at::Tensor;
using sluice::binder_of;
using sluice::run;

// Which GEMM, as `gemm.Gemms.code` has it: the library's, or kShapes * (1 + which of our own) + its shape.
constexpr int64_t kLibrary = 0, kShapes = 1024;

Tensor norm(const Tensor& x, const std::optional<Tensor>& residual, const Tensor& weight,
            double eps) {
  const Tensor out = at::empty(x.sizes(), x.options());
  static const auto& op = binder_of("rms_norm");
  run(op, {{"out", out}, {"x", x}, {"weight", weight}, {"eps", eps}, {"residual", residual}});
  return out;
}

// Adapters of a layer as `shrink_lora` and `expand_lora` take them, six tensors, or none.
class Adapters {
 public:
  // Begins with the inputs of the layer.
  Adapters(const Tensor& x, at::TensorList given) : given_(given) {
    TORCH_CHECK(given.empty() || given.size() == 6, "adapters must be six tensors or none");
    if (given.empty()) return;
    low_ = at::empty({sluice::kLoraSlices, x.size(0), given[0].size(1) * given[0].size(2)},
                     x.options().dtype(at::kFloat));
    static const auto& op = binder_of("shrink_lora");
    launch(op, "low", low_, "x", x);
  }

  void add_to(const Tensor& out) const {
    if (given_.empty()) return;
    static const auto& op = binder_of("expand_lora");
    launch(op, "out", out, "low", low_);
  }

 private:
  void launch(const sluice::Binder& op, const char* to_name, const Tensor& to,
              const char* from_name, const Tensor& from) const {
    run(op, {{to_name, to}, {from_name, from}, {"down", given_[0]}, {"up", given_[1]},
             {"ranks", given_[2]}, {"ends", given_[3]}, {"tile_slots", given_[4]},
             {"tile_tokens", given_[5]}});
  }

  at::TensorList given_;
  Tensor low_;
};

// code: of one of our own kernels.
void own_gemm(const Tensor& out, const Tensor& x, const Tensor& weight,
              const std::optional<Tensor>& bias, int64_t code, bool gated) {
  static const sluice::Binder* const own[] = {
      &binder_of("skinny_linear"), &binder_of("wide_linear")};
  run(*own[code / kShapes - 1],
      {{"out", out}, {"x", x}, {"weight", weight}, {"bias", bias},
       {"shape", static_cast<double>(code % kShapes)}, {"gated", static_cast<double>(gated)}});
}

void silu_mul(const Tensor& out, const Tensor& x) {
  static const auto& op = binder_of("silu_mul");
  run(op, {{"out", out}, {"x", x}});
}

Tensor plain_product(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                     int64_t code) {
  if (code == kLibrary) return at::linear(x, weight, bias);
  const Tensor out = at::empty({x.size(0), weight.size(0)}, x.options());
  own_gemm(out, x, weight, bias, code, false);
  return out;
}

Tensor product(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
               int64_t code, at::TensorList adapters) {
  const Adapters added(x, adapters);
  const Tensor out = plain_product(x, weight, bias, code);
  added.add_to(out);
  return out;
}

// silu(gate) * up of a product that is [gate | up]. code: of a product without gating where there
// are adapters.
Tensor gated_product(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                     int64_t code, at::TensorList adapters) {
  const Tensor out = at::empty({x.size(0), weight.size(0) / 2}, x.options());
  if (!adapters.empty()) {
    silu_mul(out, product(x, weight, bias, code, adapters));
  } else if (code == kLibrary) {
    silu_mul(out, at::linear(x, weight, bias));
  } else {
    own_gemm(out, x, weight, bias, code, true);
  }
  return out;
}

Tensor attention_inputs(const Tensor& x, const std::optional<Tensor>& residual,
                        const Tensor& norm_weight, double eps, const Tensor& qkv_weight,
                        const std::optional<Tensor>& qkv_bias, int64_t qkv_code,
                        at::TensorList qkv_adapters, const std::optional<Tensor>& q_norm,
                        const std::optional<Tensor>& k_norm, double head_eps, Tensor k_cache,
                        Tensor v_cache, const std::optional<Tensor>& k_scale,
                        const std::optional<Tensor>& v_scale, const Tensor& cos_sin,
                        const Tensor& positions, const Tensor& slots) {
  TORCH_CHECK(k_cache.dim() == 4, "caches must be [blocks, block_size, kv_heads, head_dim]");
  const int64_t kv_heads = k_cache.size(2), head_dim = k_cache.size(3);
  const int64_t q_heads = qkv_weight.size(0) / head_dim - 2 * kv_heads;
  TORCH_CHECK(q_heads > 0 && qkv_weight.size(0) % head_dim == 0, "a projection to ",
              qkv_weight.size(0), " features has no room for queries beside ", kv_heads,
              " keys and values of ", head_dim);
  const Tensor normed = norm(x, residual, norm_weight, eps);
  const Tensor qkv = product(normed, qkv_weight, qkv_bias, qkv_code, qkv_adapters)
                         .view({x.size(0), -1, head_dim});
  const Tensor q = qkv.narrow(1, 0, q_heads);
  const Tensor k = qkv.narrow(1, q_heads, kv_heads);
  const Tensor v = qkv.narrow(1, q_heads + kv_heads, kv_heads);
  static const auto& op = binder_of("rope_and_cache");
  run(op, {{"q", q}, {"k", k}, {"v", v}, {"k_cache", k_cache}, {"v_cache", v_cache},
           {"cos_sin", cos_sin}, {"positions", positions}, {"slots", slots}, {"q_norm", q_norm},
           {"k_norm", k_norm}, {"eps", head_eps}, {"k_scale", k_scale}, {"v_scale", v_scale}});
  return q;
}

Tensor feed_forward(const Tensor& attended, Tensor residual, const Tensor& output_weight,
                    const std::optional<Tensor>& output_bias, int64_t output_code,
                    at::TensorList output_adapters, const Tensor& norm_weight, double eps,
                    const Tensor& gate_up_weight, const std::optional<Tensor>& gate_up_bias,
                    int64_t gate_up_code, at::TensorList gate_up_adapters,
                    const Tensor& down_weight, const std::optional<Tensor>& down_bias,
                    int64_t down_code, at::TensorList down_adapters) {
  // Each tensor is freed before the next but one is made, for which its memory serves again.
  Tensor x = product(attended, output_weight, output_bias, output_code, output_adapters);
  x = norm(x, residual, norm_weight, eps);
  x = gated_product(x, gate_up_weight, gate_up_bias, gate_up_code, gate_up_adapters);
  return product(x, down_weight, down_bias, down_code, down_adapters);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(sluice_cuda, m) {
  m.def(
      "attention_inputs(Tensor x, Tensor(a!)? residual, Tensor norm, float eps, "
      "Tensor qkv_weight, Tensor? qkv_bias, int qkv_code, Tensor[] qkv_adapters, "
      "Tensor? q_norm, Tensor? k_norm, float head_eps, Tensor(b!) k_cache, Tensor(c!) v_cache, "
      "Tensor? k_scale, Tensor? v_scale, Tensor cos_sin, Tensor positions, Tensor slots) "
      "-> Tensor");
  m.def(
      "feed_forward(Tensor attended, Tensor(a!) residual, Tensor output_weight, "
      "Tensor? output_bias, int output_code, Tensor[] output_adapters, Tensor norm, float eps, "
      "Tensor gate_up_weight, Tensor? gate_up_bias, int gate_up_code, Tensor[] gate_up_adapters, "
      "Tensor down_weight, Tensor? down_bias, int down_code, Tensor[] down_adapters) -> Tensor");
}

TORCH_LIBRARY_IMPL(sluice_cuda, CUDA, m) {
  m.impl("attention_inputs", &attention_inputs);
  m.impl("feed_forward", &feed_forward);
}
