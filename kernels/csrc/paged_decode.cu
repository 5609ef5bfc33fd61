// The variants of the decode kernel (decoder.cuh) and the choice between them.

#include "decoder.cuh"

namespace sluice {
namespace {

template <typename T, int D, int kRowTiles, int kStages, Extras kExtras>
cudaError_t launch_kernel(const DecodeParams& p, int num_ctas, cudaStream_t stream) {
  const int smem = sizeof(Shared<D, kRowTiles, kStages>);
  auto kernel = paged_decode_kernel<T, D, kRowTiles, kStages, kExtras>;
  static const cudaError_t ready =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
  if (ready != cudaSuccess) return ready;
  return launch_dependent(kernel, num_ctas, kThreads, smem, stream, p);
}

template <typename T, int D, int kRowTiles, int kStages>
cudaError_t launch(const DecodeParams& p, int num_ctas, cudaStream_t stream) {
  if (p.soft_cap > 0.f || p.alibi_slopes) {
    return launch_kernel<T, D, kRowTiles, kStages, Extras::kScores>(p, num_ctas, stream);
  }
  if (p.shared_splits) {
    return launch_kernel<T, D, kRowTiles, kStages, Extras::kShared>(p, num_ctas, stream);
  }
  return launch_kernel<T, D, kRowTiles, kStages, Extras::kNone>(p, num_ctas, stream);
}

template <typename T>
cudaError_t dispatch(const DecodeParams& p, int head_dim, int rows, int num_ctas,
                     cudaStream_t stream) {
  const bool one = rows <= 16;
  switch (head_dim) {
    case 64:
      return one ? launch<T, 64, 1, 4>(p, num_ctas, stream) : launch<T, 64, 2, 4>(p, num_ctas, stream);
    case 96:
      return one ? launch<T, 96, 1, 3>(p, num_ctas, stream) : launch<T, 96, 2, 3>(p, num_ctas, stream);
    case 128:
      return one ? launch<T, 128, 1, 3>(p, num_ctas, stream)
                 : launch<T, 128, 2, 3>(p, num_ctas, stream);
    case 256:
      return one ? launch<T, 256, 1, 3>(p, num_ctas, stream) : cudaErrorInvalidValue;
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t paged_decode(const DecodeParams& params, bool bf16, int head_dim, int max_rows,
                         int num_ctas, cudaStream_t stream) {
  return bf16 ? dispatch<__nv_bfloat16>(params, head_dim, max_rows, num_ctas, stream)
              : dispatch<__half>(params, head_dim, max_rows, num_ctas, stream);
}

}  // namespace sluice
