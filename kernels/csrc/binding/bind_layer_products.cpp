// Registers the one launch for a layer's products with torch.

#include "binding/bind.h"
#include "gemm/layer_products.cuh"

namespace {

using at::Tensor;

void check_matrix(const Tensor& t, const Tensor& x, int64_t rows, int64_t columns,
                  const char* name) {
  const bool is_row = rows == 0;  // of one dimension
  TORCH_CHECK(t.is_cuda() && t.is_contiguous() && t.scalar_type() == x.scalar_type() &&
                  t.dim() == (is_row ? 1 : 2) && (is_row || t.size(0) == rows) &&
                  t.size(-1) == columns,
              name, " must be contiguous, of attended's type, and [", rows, ", ", columns,
              "] (0: of one dimension), got ", t.sizes());
  sluice::check_start(t, name);
}

void check_workspace(const Tensor& t, at::ScalarType type, int64_t elements, const char* name) {
  TORCH_CHECK(t.is_cuda() && t.is_contiguous() && t.scalar_type() == type && t.dim() == 1 &&
                  t.size(0) == elements,
              name, " must be contiguous ", type, " [", elements, "], got ", t.sizes());
  sluice::check_start(t, name);
}

// The next layer's part, which the last layer has not.
void set_next(sluice::LayerProducts& p, const Tensor& x, const std::optional<Tensor>& qkv,
              const std::optional<Tensor>& next_norm, const std::optional<Tensor>& qkv_weight,
              int64_t features) {
  TORCH_CHECK(qkv.has_value() == next_norm.has_value() && qkv.has_value() == qkv_weight.has_value(),
              "qkv, next_norm and qkv_weight go together");
  p.features = features;
  if (!qkv) return;
  check_matrix(*qkv, x, x.size(0), features, "qkv");
  check_matrix(*next_norm, x, 0, x.size(1), "next_norm");
  check_matrix(*qkv_weight, x, features, x.size(1), "qkv_weight");
  p.qkv = qkv->data_ptr();
  p.next_norm = next_norm->data_ptr();
  p.qkv_weight = qkv_weight->data_ptr();
}

void layer_products(Tensor residual, std::optional<Tensor> qkv, const Tensor& attended,
                    const Tensor& output, const Tensor& mid_norm, const Tensor& gate_up,
                    const Tensor& down, const std::optional<Tensor>& next_norm,
                    const std::optional<Tensor>& qkv_weight, Tensor rows, Tensor squares,
                    Tensor parts, Tensor counts, int64_t features, double eps) {
  TORCH_CHECK(attended.scalar_type() == at::kBFloat16 || attended.scalar_type() == at::kHalf,
              "attended must be bfloat16 or float16");
  TORCH_CHECK(attended.dim() == 2 && down.dim() == 2, "attended and down must have two dimensions");
  const int64_t tokens = attended.size(0), hidden = attended.size(1), intermediate = down.size(1);
  TORCH_CHECK(tokens <= sluice::kMostProductTokens, "at most ", sluice::kMostProductTokens,
              " tokens, got ", tokens);
  const int64_t num_parts = sluice::layer_products_parts(hidden, intermediate, features);
  TORCH_CHECK(num_parts > 0, "no kernel for hidden, intermediate and qkv sizes ", hidden, ", ",
              intermediate, ", ", features);
  check_matrix(attended, attended, tokens, hidden, "attended");
  check_matrix(residual, attended, tokens, hidden, "residual");
  check_matrix(output, attended, hidden, hidden, "output");
  check_matrix(mid_norm, attended, 0, hidden, "mid_norm");
  check_matrix(gate_up, attended, 2 * intermediate, hidden, "gate_up");
  check_matrix(down, attended, hidden, intermediate, "down");
  sluice::LayerProducts p = {};
  set_next(p, attended, qkv, next_norm, qkv_weight, features);
  const int64_t row = sluice::kMostProductTokens * hidden;
  check_workspace(rows, attended.scalar_type(),
                  2 * row + sluice::kMostProductTokens * intermediate, "rows");
  check_workspace(squares, at::kFloat,
                  sluice::layer_products_squares(hidden, intermediate, features), "squares");
  check_workspace(parts, at::kFloat, num_parts, "parts");
  check_workspace(counts, at::kInt, sluice::kProductCounts, "counts");
  if (tokens == 0) return;
  const auto at = [&](int64_t element) {
    return static_cast<uint8_t*>(rows.data_ptr()) + element * rows.element_size();
  };
  p.residual = residual.data_ptr();
  p.attended = attended.data_ptr();
  p.output = output.data_ptr();
  p.mid_norm = mid_norm.data_ptr();
  p.gate_up = gate_up.data_ptr();
  p.down = down.data_ptr();
  p.mid = at(0);
  p.next = at(row);
  p.activated = at(2 * row);
  p.squares = squares.data_ptr<float>();
  p.parts = parts.data_ptr<float>();
  p.counts = counts.data_ptr<int>();
  p.tokens = tokens;
  p.hidden = hidden;
  p.intermediate = intermediate;
  p.eps = eps;
  const c10::cuda::CUDAGuard guard(attended.device());
  sluice::check(sluice::layer_products(p, attended.scalar_type() == at::kBFloat16,
                                       c10::cuda::getCurrentCUDAStream()),
                "layer_products");
}

std::tuple<int64_t, int64_t> workspace(int64_t hidden, int64_t intermediate, int64_t features) {
  return {sluice::layer_products_squares(hidden, intermediate, features),
          sluice::layer_products_parts(hidden, intermediate, features)};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(sluice_cuda, m) {
  m.def(
      "layer_products(Tensor(a!) residual, Tensor(b!)? qkv, Tensor attended, Tensor output, "
      "Tensor mid_norm, Tensor gate_up, Tensor down, Tensor? next_norm, Tensor? qkv_weight, "
      "Tensor(c!) rows, Tensor(d!) squares, Tensor(e!) parts, Tensor(f!) counts, int features, "
      "float eps) -> ()");
  m.def("layer_products_workspace(int hidden, int intermediate, int features) -> (int, int)",
        &workspace);
  m.def("layer_products_fit(int hidden, int intermediate, int features, bool bf16) -> bool",
        [](int64_t hidden, int64_t intermediate, int64_t features, bool bf16) {
          return sluice::layer_products_fit(hidden, intermediate, features, bf16);
        });
}

TORCH_LIBRARY_IMPL(sluice_cuda, CUDA, m) { m.impl("layer_products", &layer_products); }
