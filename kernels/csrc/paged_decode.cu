// The decode kernel (decoder.cuh) for caches of 16-bit floats, and the choice between its variants.

#include "decode_launch.cuh"

namespace sluice {
namespace {

template <typename T>
cudaError_t dispatch(const DecodeParams& p, int head_dim, int rows, int num_ctas,
                     cudaStream_t stream) {
  switch (head_dim) {
    case 64:
      return launch_rows<T, PlainTile<T, 64>, 64, 4>(p, rows, num_ctas, stream);
    case 96:
      return launch_rows<T, PlainTile<T, 96>, 96, 3>(p, rows, num_ctas, stream);
    case 128:
      return launch_rows<T, PlainTile<T, 128>, 128, 3>(p, rows, num_ctas, stream);
    case 256:
      return launch_rows<T, PlainTile<T, 256>, 256, 3>(p, rows, num_ctas, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t paged_decode(const DecodeParams& params, bool bf16, int head_dim, int max_rows,
                         int num_ctas, cudaStream_t stream) {
  if (params.k_scale) {
    return paged_decode_fp8(params, bf16, head_dim, max_rows, num_ctas, stream);
  }
  return bf16 ? dispatch<__nv_bfloat16>(params, head_dim, max_rows, num_ctas, stream)
              : dispatch<__half>(params, head_dim, max_rows, num_ctas, stream);
}

}  // namespace sluice
