// Choosing and launching a variant of the decode kernel (decoder.cuh).
#pragma once

#include "decoder.cuh"

namespace sluice {

template <typename T, typename Tile, int D, int kRowTiles, int kStages, Extras kExtras>
__global__ void __launch_bounds__(kThreads) paged_decode_kernel(const DecodeParams params) {
  extern __shared__ __align__(128) unsigned char raw[];
  Decoder<T, Tile, D, kRowTiles, kStages, kExtras> decoder(
      params, *reinterpret_cast<Shared<D, Tile::kBytes, kRowTiles, kStages>*>(raw));
  decoder.run();
}

template <typename T, typename Tile, int D, int kRowTiles, int kStages, Extras kExtras>
cudaError_t launch_decode(const DecodeParams& p, int num_ctas, cudaStream_t stream) {
  const int smem = sizeof(Shared<D, Tile::kBytes, kRowTiles, kStages>);
  auto kernel = paged_decode_kernel<T, Tile, D, kRowTiles, kStages, kExtras>;
  static const cudaError_t ready =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
  if (ready != cudaSuccess) return ready;
  return launch_dependent(kernel, num_ctas, kThreads, smem, stream, p);
}

template <typename T, typename Tile, int D, int kRowTiles, int kStages>
cudaError_t launch_extras(const DecodeParams& p, int num_ctas, cudaStream_t stream) {
  if (p.soft_cap > 0.f || p.alibi_slopes) {
    return launch_decode<T, Tile, D, kRowTiles, kStages, Extras::kScores>(p, num_ctas, stream);
  }
  if constexpr (!Tile::kFp8) {
    if (p.shared_splits) {
      return launch_decode<T, Tile, D, kRowTiles, kStages, Extras::kShared>(p, num_ctas, stream);
    }
  }
  return launch_decode<T, Tile, D, kRowTiles, kStages, Extras::kNone>(p, num_ctas, stream);
}

// kStages: tiles in flight, as many as let two CTAs share the memory of an SM.
template <typename T, typename Tile, int D, int kStages>
cudaError_t launch_rows(const DecodeParams& p, int rows, int num_ctas, cudaStream_t stream) {
  if (rows <= 16) return launch_extras<T, Tile, D, 1, kStages>(p, num_ctas, stream);
  if constexpr (D == 256) {
    return cudaErrorInvalidValue;
  } else {
    return launch_extras<T, Tile, D, 2, kStages>(p, num_ctas, stream);
  }
}

}  // namespace sluice
