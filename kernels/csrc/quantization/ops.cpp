#include "quantization/quantize_rows.cuh"

namespace sluice {

template <typename Args>
static RoundedRows rounded(const Args& args, const Call& call) {
  const int bytes = args.width * (call.dtype == Dtype::kFloat32 ? 4 : 2);
  require(bytes % 16 == 0 && bytes <= 65536,
          "rows must be multiples of 16 bytes and at most 64 KiB, got ", bytes);
  return {args.out, args.scales, args.rows, args.width};
}

OP(round_rows, RoundRows) {
  return round_rows(rounded(args, call), args.x, args.x_stride, call.dtype, call.stream);
}

OP(rms_norm_rounded, RmsNormRounded) {
  RmsNorm norm = {};
  norm.x = args.x;
  norm.residual = args.residual;
  norm.weight = args.weight;
  norm.x_stride = args.x_stride;
  norm.rows = args.rows;
  norm.width = args.width;
  norm.eps = args.eps;
  return rms_norm_rounded(rounded(args, call), norm, call.dtype, call.stream);
}

OP(silu_mul_rounded, SiluMulRounded) {
  return silu_mul_rounded(rounded(args, call), args.x, call.dtype, call.stream);
}

}  // namespace sluice
