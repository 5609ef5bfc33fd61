// The decode kernel (decoder.cuh) for caches in FP8: twice the tiles in flight in the same memory.

#include "decode_launch.cuh"

namespace sluice {
namespace {

template <typename T>
cudaError_t dispatch(const DecodeParams& p, int head_dim, int rows, int num_ctas,
                     cudaStream_t stream) {
  switch (head_dim) {
    case 64:
      return launch_rows<T, Fp8Tile<T, 64>, 64, 8>(p, rows, num_ctas, stream);
    case 96:
      return launch_rows<T, Fp8Tile<T, 96>, 96, 5>(p, rows, num_ctas, stream);
    case 128:
      return launch_rows<T, Fp8Tile<T, 128>, 128, 6>(p, rows, num_ctas, stream);
    case 256:
      return launch_rows<T, Fp8Tile<T, 256>, 256, 6>(p, rows, num_ctas, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t paged_decode_fp8(const DecodeParams& params, bool bf16, int head_dim, int max_rows,
                             int num_ctas, cudaStream_t stream) {
  return bf16 ? dispatch<__nv_bfloat16>(params, head_dim, max_rows, num_ctas, stream)
              : dispatch<__half>(params, head_dim, max_rows, num_ctas, stream);
}

}  // namespace sluice
