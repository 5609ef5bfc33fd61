#include <algorithm>

#include "gemm/dense_linear.cuh"
#include "gemm/quantized_linear.cuh"

namespace sluice {

template <typename Linear>
static void require_multiples(const Linear& args, int k_multiple) {
  require(args.features % 16 == 0 && args.k % k_multiple == 0,
          "features must be a multiple of 16 and k of ", k_multiple, ", got ", args.features,
          " and ", args.k);
}

static void require_split(const QuantizedLinear& args) {
  require(args.split >= 0 && args.split <= 8 && args.split <= args.k / 128,
          "split must be 0 to 8 and at most k / 128, got ", args.split);
}

// shapes: that the op has; the last where none is given.
static void require_dense(DenseLinear& args, std::initializer_list<int> shapes) {
  require_multiples(args, 64);
  if (args.shape == 0) args.shape = *(shapes.end() - 1);
  std::ostringstream known;
  for (int shape : shapes) known << ' ' << shape;
  require(std::find(shapes.begin(), shapes.end(), args.shape) != shapes.end(),
          "shape must be one of", known.str(), ", got ", args.shape);
}

OP(skinny_linear, DenseLinear) {
  require_dense(args, {4, 16, 8});
  require(args.tokens <= kMaxSkinnyTokens, "at most ", kMaxSkinnyTokens, " tokens, got ",
          args.tokens);
  return skinny_linear(args, call.bf16(), call.stream);
}

OP(wide_linear, DenseLinear) {
  require_dense(args, {192, 224, 256});
  return wide_linear(args, call.bf16(), call.stream);
}

static void require_skinny(const QuantizedLinear& args, const Call& call) {
  require(!call.is("x", Element::kE4m3) && args.tokens <= kMaxSkinnyTokens,
          "x must be bfloat16 or float16, with at most ", kMaxSkinnyTokens, " tokens, got ",
          args.tokens);
}

static void require_fp8(const QuantizedLinear& args, const Call& call, int k_multiple) {
  require_multiples(args, k_multiple);
  require(call.is("weight", Element::kE4m3) && call.size("weight", 1) == args.k,
          "weight must be float8_e4m3fn [", args.features, ", ", args.k, "]");
  require(call.is("scales", Element::kFloat32), "scales must be float32");
}

static void set_groups(QuantizedLinear& args, const Call& call) {
  require_multiples(args, 128);
  require(call.is("weight", Element::kInt32) && call.size("weight", 1) * 8 == args.k,
          "weight must be int32 [", args.features, ", ", args.k / 8, "]");
  const TensorView& scales = *call.tensor("scales");
  require(scales.element == call.tensor("x")->element && scales.dim == 3 &&
              scales.sizes[0] == args.features && scales.sizes[1] > 0 && scales.sizes[2] == 2,
          "scales must be [", args.features, ", groups, 2] of the dtype of x");
  args.group_size = static_cast<int>(args.k / scales.sizes[1]);
  require(args.group_size % 32 == 0 && args.group_size * scales.sizes[1] == args.k,
          "groups must be of a multiple of 32 elements");
}

OP(skinny_fp8_linear, QuantizedLinear) {
  require_fp8(args, call, 64);
  require_skinny(args, call);
  int64_t scales = args.features;
  if (args.block_rows > 0) {
    require(args.group_size > 0 && args.group_size % 64 == 0,
            "blocks must have a multiple of 64 columns, got ", args.group_size);
    scales = (args.features + args.block_rows - 1) / args.block_rows *
             ((args.k + args.group_size - 1) / args.group_size);
  }
  require(call.numel("scales") == scales, "there must be ", scales, " scales, got ",
          call.numel("scales"));
  return skinny_fp8_linear(args, call.bf16(), call.stream);
}

OP(skinny_int4_linear, QuantizedLinear) {
  set_groups(args, call);
  require_skinny(args, call);
  return skinny_int4_linear(args, call.bf16(), call.stream);
}

OP(tiled_int4_linear, QuantizedLinear) {
  set_groups(args, call);
  require_split(args);
  require(args.group_size == 32 || args.group_size == 64 || args.group_size % 128 == 0,
          "groups must be of 32, 64 or a multiple of 128 elements, got ", args.group_size);
  return tiled_int4_linear(args, args.split, call.bf16(), call.stream);
}

OP(tiled_fp8_linear, QuantizedLinear) {
  require_fp8(args, call, 128);
  require_split(args);
  require(call.is("x", Element::kE4m3), "x must be float8_e4m3fn");
  const bool blocks = args.block_rows > 0;
  const int64_t pieces = blocks ? args.k / 128 : 1;
  const int64_t rows =
      blocks ? (args.features + args.block_rows - 1) / args.block_rows : args.features;
  require(call.numel("scales") == rows * pieces,
          "scales must be [features, 1] or [features / block_rows, k / 128]");
  require(args.x_scales != nullptr && call.numel("x_scales") == args.tokens * pieces,
          "x_scales must be [tokens, 1] or with blocks [k / 128, tokens]");
  if (blocks) {
    require(call.size("x_scales", 0) == pieces && args.x_scale_stride % 64 == 0 &&
                args.x_scale_stride >= args.tokens,
            "x_scales must have rows of a multiple of 64 elements, got ", args.x_scale_stride);
  } else {
    require(args.tokens <= 1 || args.x_scale_stride == 1, "x_scales must be contiguous");
    args.x_scale_stride = 0;
  }
  return tiled_fp8_linear(args, args.split, call.bf16(), call.stream);
}

}  // namespace sluice
