// The decode kernel (decode_attention.cuh) for caches in FP8.

#include "attention/decode_launch.cuh"

namespace sluice {

cudaError_t paged_decode_fp8(const DecodeParams& params, bool bf16, int head_dim, int max_rows,
                             int num_ctas, cudaStream_t stream) {
  const auto launch = bf16 ? launch_head_dim<__nv_bfloat16, Fp8Tile>
                           : launch_head_dim<__half, Fp8Tile>;
  return launch(params, head_dim, max_rows, num_ctas, stream);
}

}  // namespace sluice
