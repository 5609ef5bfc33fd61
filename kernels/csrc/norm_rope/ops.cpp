#include "norm_rope/layer_ops.cuh"

namespace sluice {

OP(rms_norm, RmsNorm) {
  args.wide = call.is("weight", Element::kFloat32) && call.dtype != Dtype::kFloat32;
  const int bytes = args.width * (call.dtype == Dtype::kFloat32 ? 4 : 2);
  require(bytes % 16 == 0 && bytes <= 65536,
          "rows must be multiples of 16 bytes and at most 64 KiB, got ", bytes);
  return rms_norm(args, call.dtype, call.stream);
}

static cudaError_t multiply_gated(const GatedMul& args, Activation activation, const Call& call) {
  require(args.width % (call.dtype == Dtype::kFloat32 ? 4 : 8) == 0,
          "half a row must be a multiple of 16 bytes, got ", args.width, " elements");
  return gated_mul(args.out, args.x, args.rows, args.width, activation, call.dtype, call.stream);
}

OP(silu_mul, GatedMul) { return multiply_gated(args, Activation::kSilu, call); }

OP(gelu_tanh_mul, GatedMul) { return multiply_gated(args, Activation::kGeluTanh, call); }

OP(rope_and_cache, RopeParams) {
  require(call.stride("k", 0) == args.row_stride && call.stride("v", 0) == args.row_stride,
          "q, k and v must be views of one fused projection");
  require(args.rotary_dim <= args.head_dim && args.rotary_dim % 2 == 0,
          "cos_sin must have an even number of columns, at most ", args.head_dim);
  require((args.q_norm == nullptr) == (args.k_norm == nullptr), "q_norm and k_norm go together");
  require_scales(call, "k_cache", {"k_scale", "v_scale"});
  args.wide_norms = call.is("q_norm", Element::kFloat32) && call.dtype != Dtype::kFloat32;
  return rope_and_cache(args, call.dtype, call.stream);
}

}  // namespace sluice
