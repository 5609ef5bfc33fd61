#include <algorithm>

#include "moe/expert_linear.cuh"
#include "moe/route_experts.cuh"

namespace sluice {

OP(route_experts, RouteExperts) {
  require(args.num_experts <= kMaxRoutedExperts && args.top_k <= args.num_experts &&
              args.top_k <= kMaxChosenExperts,
          "at most ", kMaxRoutedExperts, " experts, of which at most ", kMaxChosenExperts,
          " are chosen");
  require(args.num_groups >= 1 && args.num_groups <= kMaxChosenExperts &&
              args.num_experts % args.num_groups == 0 &&
              (args.num_groups == 1 || args.top_k_groups <= args.num_groups),
          "groups must be as large as each other, and at most ", kMaxChosenExperts);
  return route_experts(args, call.dtype, call.stream);
}

OP(group_pairs, GroupPairs) {
  args.num_pairs = static_cast<int>(call.numel("experts"));
  require(call.size("experts", 1) <= kMaxChosenExperts && args.num_experts <= kMaxRoutedExperts,
          "at most ", kMaxRoutedExperts, " experts, of which at most ", kMaxChosenExperts,
          " are chosen");
  require(args.max_tiles >= args.num_pairs / args.rows + std::min(args.num_experts, args.num_pairs),
          "max_tiles must have room for the worst case, got ", args.max_tiles);
  return group_pairs(args, call.stream);
}

// Sets the format of the experts' matrices, and checks their sizes and their scales'.
template <typename Args>
static void set_format(Args& args, const Call& call) {
  const bool is_fp8 = call.is("weight", Element::kE4m3), is_int4 = call.is("weight", Element::kInt32);
  const int block_rows = args.scales.block_rows, group_size = args.scales.group_size;
  require(args.features % 16 == 0 && call.size("weight", 2) == (is_int4 ? args.k / 8 : args.k) &&
              args.k % (is_int4 ? 128 : 64) == 0,
          "weight must be [experts, features, k], features a multiple of 16 and k of 64, or of 128 "
          "for four bits");
  const TensorView* scales = call.tensor("scales");
  require((scales != nullptr) == (is_fp8 || is_int4), "scales must be passed for quantized weights, "
          "and for no others");
  if (scales != nullptr) {
    require(block_rows >= 1 && group_size >= 1 && group_size % (is_fp8 ? 64 : 32) == 0,
            "groups must be of a multiple of 64 elements, or of 32 for four bits");
    const int64_t rows = (args.features + block_rows - 1) / block_rows;
    const int64_t columns = (args.k + group_size - 1) / group_size;
    require(scales->dim >= 3 && scales->sizes[0] == args.num_experts && scales->sizes[1] == rows &&
                scales->sizes[2] == columns &&
                call.numel("scales") == args.num_experts * rows * columns * (is_int4 ? 2 : 1) &&
                scales->element ==
                    (is_fp8 ? Element::kFloat32 : call.tensor("x")->element) &&
                (is_fp8 || block_rows == 1),
            "scales must be float32 [experts, features / block_rows, k / group_size], or for four "
            "bits [experts, features, k / group_size, 2] of x's type");
  }
  args.format = is_fp8    ? ExpertFormat::kFp8
                : is_int4 ? ExpertFormat::kInt4
                          : ExpertFormat::kPlain;
}

OP(expert_linear, ExpertLinear) {
  set_format(args, call);
  args.num_pairs = static_cast<int>(call.numel("experts"));
  require(call.size("x", 0) * args.pairs_per_row == args.num_pairs, "x must have a row for each ",
          args.pairs_per_row, " pairs, got ", call.size("x", 0), " for ", args.num_pairs);
  return expert_linear(args, call.bf16(), call.stream);
}

OP(expert_sum, ExpertSum) {
  require(args.top_k <= kMaxChosenExperts, "at most ", kMaxChosenExperts, " experts of a token");
  set_format(args, call);
  return expert_sum(args, call.bf16(), call.stream);
}

OP(combine_experts, CombineExperts) {
  require(args.width % 8 == 0, "rows must be multiples of 8 elements, got ", args.width);
  return combine_experts(args, call.bf16(), call.stream);
}

}  // namespace sluice
