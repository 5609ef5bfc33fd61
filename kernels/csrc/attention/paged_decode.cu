// The decode kernel (decode_attention.cuh) for caches of 16-bit floats.

#include "attention/decode_launch.cuh"

namespace sluice {

cudaError_t paged_decode(const DecodeParams& params, bool bf16, int head_dim, int max_rows,
                         int num_ctas, cudaStream_t stream) {
  if (params.k_scale) {
    return paged_decode_fp8(params, bf16, head_dim, max_rows, num_ctas, stream);
  }
  const auto launch = bf16 ? launch_head_dim<__nv_bfloat16, PlainTile>
                           : launch_head_dim<__half, PlainTile>;
  return launch(params, head_dim, max_rows, num_ctas, stream);
}

}  // namespace sluice
