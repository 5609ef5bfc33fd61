// Registers with torch what mixtures of experts need.

#include "binding/bind.h"
#include "moe/expert_linear.cuh"
#include "moe/route_experts.cuh"

namespace {

using at::Tensor;
using sluice::check;
using sluice::check_int32;
using sluice::check_start;

void check_experts(const Tensor& experts) {
  TORCH_CHECK(experts.is_cuda() && experts.scalar_type() == at::kLong && experts.is_contiguous() &&
                  experts.dim() == 2 && experts.size(1) <= sluice::kMaxChosenExperts,
              "experts must be contiguous int64 [tokens, top_k], top_k at most ",
              sluice::kMaxChosenExperts);
}

void check_scales(const Tensor& scales, const Tensor& experts) {
  TORCH_CHECK(scales.is_cuda() && scales.scalar_type() == at::kFloat && scales.is_contiguous() &&
                  scales.sizes() == experts.sizes(),
              "weights must be contiguous float32, as many as experts");
}

// Checks that all are contiguous matrices, or stacks of them, of x's type.
bool check_halves(const Tensor& x, std::initializer_list<Tensor> others) {
  TORCH_CHECK(x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf,
              "x must be bfloat16 or float16");
  TORCH_CHECK(x.is_cuda() && x.is_contiguous() && x.dim() == 2, "x must be contiguous [rows, k]");
  check_start(x, "x");
  for (const Tensor& t : others) {
    TORCH_CHECK(t.is_cuda() && t.is_contiguous() && t.scalar_type() == x.scalar_type(),
                "all must be contiguous and of x's type");
    check_start(t, "out and weight");
  }
  return x.scalar_type() == at::kBFloat16;
}

void route_experts(Tensor experts, Tensor weights, const Tensor& logits,
                   const std::optional<Tensor>& bias, bool sigmoid, bool renormalize, double scale,
                   int64_t num_groups, int64_t top_k_groups) {
  check_experts(experts);
  check_scales(weights, experts);
  TORCH_CHECK(logits.is_cuda() && logits.dim() == 2 && logits.is_contiguous() &&
                  logits.size(0) == experts.size(0),
              "logits must be contiguous [", experts.size(0), ", experts]");
  const int64_t num_experts = logits.size(1);
  TORCH_CHECK(num_experts <= sluice::kMaxRoutedExperts && experts.size(1) <= num_experts,
              "at most ", sluice::kMaxRoutedExperts, " experts, of which top_k are chosen");
  TORCH_CHECK(num_groups >= 1 && num_groups <= sluice::kMaxChosenExperts &&
                  num_experts % num_groups == 0 && (num_groups == 1 || top_k_groups <= num_groups),
              "groups must be as large as each other, and at most ", sluice::kMaxChosenExperts);
  TORCH_CHECK(!bias || (bias->is_cuda() && bias->scalar_type() == at::kFloat &&
                        bias->is_contiguous() && bias->numel() == num_experts),
              "bias must be contiguous float32 [", num_experts, "]");
  sluice::RouteExperts p = {};
  p.logits = logits.data_ptr();
  p.bias = bias ? bias->data_ptr<float>() : nullptr;
  p.experts = experts.data_ptr<int64_t>();
  p.weights = weights.data_ptr<float>();
  p.tokens = logits.size(0);
  p.num_experts = num_experts;
  p.top_k = experts.size(1);
  p.num_groups = num_groups;
  p.top_k_groups = top_k_groups;
  p.sigmoid = sigmoid;
  p.renormalize = renormalize;
  p.scale = scale;
  const auto dtype = sluice::dtype_of(logits, "logits");
  const c10::cuda::CUDAGuard guard(logits.device());
  check(sluice::route_experts(p, dtype, c10::cuda::getCurrentCUDAStream()), "route_experts");
}

void group_pairs(Tensor order, Tensor tiles, const Tensor& experts, int64_t num_experts,
                 int64_t rows) {
  check_experts(experts);
  check_int32(order, "order");
  check_int32(tiles, "tiles");
  const int64_t num_pairs = experts.numel();
  TORCH_CHECK(order.numel() == num_pairs && tiles.dim() == 2 && tiles.size(0) == 3 &&
                  tiles.size(1) >= num_pairs / rows + std::min(num_experts, num_pairs),
              "order must have ", num_pairs, " elements, and tiles room for the worst case");
  TORCH_CHECK(num_experts <= sluice::kMaxRoutedExperts, "at most ", sluice::kMaxRoutedExperts,
              " experts");
  sluice::GroupPairs p = {};
  p.experts = experts.data_ptr<int64_t>();
  p.order = order.data_ptr<int>();
  p.tiles = tiles.data_ptr<int>();
  p.num_pairs = num_pairs;
  p.num_experts = num_experts;
  p.rows = rows;
  p.max_tiles = tiles.size(1);
  const c10::cuda::CUDAGuard guard(experts.device());
  check(sluice::group_pairs(p, c10::cuda::getCurrentCUDAStream()), "group_pairs");
}

// The matrices of all experts, checked: [experts, features, k] of x's type, or in FP8, or [experts,
// features, k / 8] int32 for four bits.
template <typename Product>
void set_matrices(Product& p, const Tensor& weight, const std::optional<Tensor>& scales,
                  const Tensor& x, int64_t block_rows, int64_t group_size) {
  const int64_t experts = weight.size(0), features = weight.size(1), k = x.size(1);
  const bool is_fp8 = weight.scalar_type() == at::kFloat8_e4m3fn;
  const bool is_int4 = weight.scalar_type() == at::kInt;
  TORCH_CHECK(weight.is_cuda() && weight.is_contiguous() && weight.dim() == 3 &&
                  features % 16 == 0 && weight.size(2) == (is_int4 ? k / 8 : k) &&
                  k % (is_int4 ? 128 : 64) == 0,
              "weight must be [experts, features, k], features a multiple of 16 and k of 64, or of "
              "128 for four bits");
  check_start(weight, "weight");
  TORCH_CHECK(scales.has_value() == (is_fp8 || is_int4), "quantized weights alone have scales");
  if (!scales) {
    TORCH_CHECK(weight.scalar_type() == x.scalar_type(), "weight must be of x's type");
  } else {
    TORCH_CHECK(block_rows >= 1 && group_size >= 1 && group_size % (is_fp8 ? 64 : 32) == 0,
                "groups must be of a multiple of 64 elements, or of 32 for four bits");
    const int64_t rows = (features + block_rows - 1) / block_rows;
    const int64_t columns = (k + group_size - 1) / group_size;
    TORCH_CHECK(scales->is_cuda() && scales->is_contiguous() && scales->size(0) == experts &&
                    scales->size(1) == rows && scales->size(2) == columns &&
                    scales->numel() == experts * rows * columns * (is_int4 ? 2 : 1) &&
                    scales->scalar_type() == (is_fp8 ? at::kFloat : x.scalar_type()) &&
                    (is_fp8 || block_rows == 1),
                "scales must be float32 [experts, features / block_rows, k / group_size], or for "
                "four bits [experts, features, k / group_size, 2] of x's type");
    p.scales = {scales->data_ptr(), static_cast<int>(block_rows), static_cast<int>(group_size)};
  }
  p.format = is_fp8    ? sluice::ExpertFormat::kFp8
             : is_int4 ? sluice::ExpertFormat::kInt4
                       : sluice::ExpertFormat::kPlain;
  p.weight = weight.data_ptr();
  p.num_experts = experts;
  p.features = features;
  p.k = k;
}

void expert_linear(Tensor out, const Tensor& x, const Tensor& weight,
                   const std::optional<Tensor>& scales, const Tensor& experts,
                   int64_t pairs_per_row, bool gated, int64_t block_rows, int64_t group_size) {
  const bool bf16 = check_halves(x, {out});
  check_experts(experts);
  sluice::ExpertLinear p = {};
  set_matrices(p, weight, scales, x, block_rows, group_size);
  const int64_t num_pairs = experts.numel();
  TORCH_CHECK(x.size(0) * pairs_per_row == num_pairs && out.dim() == 2 &&
                  out.size(0) == num_pairs && out.size(1) * (gated ? 2 : 1) == p.features,
              "x must have a row for each ", pairs_per_row, " pairs, and out one for each pair");
  p.out = out.data_ptr();
  p.x = x.data_ptr();
  p.experts = experts.data_ptr<int64_t>();
  p.num_pairs = num_pairs;
  p.pairs_per_row = pairs_per_row;
  p.gated = gated;
  const c10::cuda::CUDAGuard guard(x.device());
  check(sluice::expert_linear(p, bf16, c10::cuda::getCurrentCUDAStream()), "expert_linear");
}

void expert_sum(Tensor out, const Tensor& x, const Tensor& weight,
                const std::optional<Tensor>& scales, const Tensor& experts, const Tensor& shares,
                int64_t block_rows, int64_t group_size) {
  const bool bf16 = check_halves(x, {out});
  check_experts(experts);
  check_scales(shares, experts);
  sluice::ExpertSum p = {};
  set_matrices(p, weight, scales, x, block_rows, group_size);
  TORCH_CHECK(x.size(0) == experts.numel() && out.dim() == 2 && out.size(0) == experts.size(0) &&
                  out.size(1) == p.features,
              "x must have a row for each pair, and out one for each token");
  p.out = out.data_ptr();
  p.x = x.data_ptr();
  p.experts = experts.data_ptr<int64_t>();
  p.shares = shares.data_ptr<float>();
  p.tokens = experts.size(0);
  p.top_k = experts.size(1);
  const c10::cuda::CUDAGuard guard(x.device());
  check(sluice::expert_sum(p, bf16, c10::cuda::getCurrentCUDAStream()), "expert_sum");
}

void combine_experts(Tensor out, const Tensor& x, const Tensor& scales) {
  const bool bf16 = check_halves(x, {out});
  TORCH_CHECK(scales.is_cuda() && scales.scalar_type() == at::kFloat && scales.is_contiguous() &&
                  scales.numel() == x.size(0) && scales.dim() == 2 && out.dim() == 2 &&
                  out.size(0) == scales.size(0) && out.size(1) == x.size(1) && x.size(1) % 8 == 0,
              "x must have a row for each of the float32 weights [tokens, top_k], out one for each "
              "token; rows are multiples of 8 elements");
  sluice::CombineExperts p = {};
  p.out = out.data_ptr();
  p.x = x.data_ptr();
  p.scales = scales.data_ptr<float>();
  p.tokens = scales.size(0);
  p.top_k = scales.size(1);
  p.width = x.size(1);
  const c10::cuda::CUDAGuard guard(x.device());
  check(sluice::combine_experts(p, bf16, c10::cuda::getCurrentCUDAStream()), "combine_experts");
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(sluice_cuda, m) {
  m.def(
      "route_experts(Tensor(a!) experts, Tensor(b!) weights, Tensor logits, Tensor? bias, "
      "bool sigmoid, bool renormalize, float scale, int num_groups, int top_k_groups) -> ()");
  m.def(
      "group_pairs(Tensor(a!) order, Tensor(b!) tiles, Tensor experts, int num_experts, int rows) "
      "-> ()");
  m.def(
      "expert_linear(Tensor(a!) out, Tensor x, Tensor weight, Tensor? scales, Tensor experts, "
      "int pairs_per_row, bool gated, int block_rows, int group_size) -> ()");
  m.def(
      "expert_sum(Tensor(a!) out, Tensor x, Tensor weight, Tensor? scales, Tensor experts, "
      "Tensor shares, int block_rows, int group_size) -> ()");
  m.def("combine_experts(Tensor(a!) out, Tensor x, Tensor scales) -> ()");
}

TORCH_LIBRARY_IMPL(sluice_cuda, CUDA, m) {
  m.impl("route_experts", &route_experts);
  m.impl("group_pairs", &group_pairs);
  m.impl("expert_linear", &expert_linear);
  m.impl("expert_sum", &expert_sum);
  m.impl("combine_experts", &combine_experts);
}
