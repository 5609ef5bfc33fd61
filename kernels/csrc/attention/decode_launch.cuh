// Choosing and launching a variant of the decode kernel (decode_attention.cuh).
#pragma once

#include "attention/decode_attention.cuh"

namespace sluice {

// CTAs that share an SM: as cuda.py has it. Widening FP8 takes so many instructions that more warps
// pay, as many as registers suffice for.
template <typename Tile, int D, int kRowTiles>
constexpr int kSharers =
    Tile::kFp8 ? (D == 256 || kRowTiles == 4 ? 2 : D == 128 && kRowTiles == 1 ? 4 : 3)
               : (D == 256 ? 1 : 2);

template <typename T, typename Tile, int D, int kRowTiles, int kStages, Extras kExtras>
__global__ void __launch_bounds__(kThreads, (kSharers<Tile, D, kRowTiles>))
    paged_decode_kernel(const DecodeParams params) {
  extern __shared__ __align__(512) unsigned char raw[];
  using Kernel = DecodeAttention<T, Tile, D, kRowTiles, kStages, kExtras>;
  Kernel(params, *reinterpret_cast<typename Kernel::Memory*>(raw)).run();
}

// Tiles in flight: kMost, or fewer where an SM's CTAs have no room for that and queries.
template <typename T, typename Tile, int D, int kRowTiles, int kMost, Extras kExtras>
constexpr int fitting_stages() {
  using Memory = typename DecodeAttention<T, Tile, D, kRowTiles, kMost, kExtras>::Memory;
  constexpr size_t kSm = 228 * 1024, kReserved = 1024;  // of sm_90, and in it for each CTA
  if constexpr ((sizeof(Memory) + kReserved) * kSharers<Tile, D, kRowTiles> <= kSm) {
    return kMost;
  } else {
    return fitting_stages<T, Tile, D, kRowTiles, kMost - 1, kExtras>();
  }
}

template <typename T, typename Tile, int D, int kRowTiles, int kMost, Extras kExtras>
cudaError_t launch_decode(const DecodeParams& p, int num_ctas, cudaStream_t stream) {
  constexpr int kStages = fitting_stages<T, Tile, D, kRowTiles, kMost, kExtras>();
  const int smem = sizeof(typename DecodeAttention<T, Tile, D, kRowTiles, kStages, kExtras>::Memory);
  auto kernel = paged_decode_kernel<T, Tile, D, kRowTiles, kStages, kExtras>;
  static const cudaError_t ready = [&] {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    if (error != cudaSuccess) return error;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  }();
  if (ready != cudaSuccess) return ready;
  const unsigned cluster = p.cluster.value;
  const dim3 grid(p.columns, num_ctas / p.columns / cluster * cluster);
  return launch_dependent_clusters(kernel, grid, kThreads, smem, stream, dim3(1, cluster), p);
}

template <typename T, typename Tile, int D, int kRowTiles, int kStages>
cudaError_t launch_extras(const DecodeParams& p, int num_ctas, cudaStream_t stream) {
  if (p.soft_cap > 0.f || p.alibi_slopes) {
    return launch_decode<T, Tile, D, kRowTiles, kStages, Extras::kScores>(p, num_ctas, stream);
  }
  if constexpr (!Tile::kFp8) {
    if (p.new_k) {
      return launch_decode<T, Tile, D, kRowTiles, kStages, Extras::kNew>(p, num_ctas, stream);
    }
    if (p.shared_splits) {
      return launch_decode<T, Tile, D, kRowTiles, kStages, Extras::kShared>(p, num_ctas, stream);
    }
  }
  return launch_decode<T, Tile, D, kRowTiles, kStages, Extras::kNone>(p, num_ctas, stream);
}

// kStages: tiles in flight, as many as the memory of an SM holds for its CTAs without queries;
// kFewRowStages: the same where there are more CTAs.
template <typename T, typename Tile, int D, int kStages, int kFewRowStages = kStages>
cudaError_t launch_rows(const DecodeParams& p, int rows, int num_ctas, cudaStream_t stream) {
  if (rows <= 8) return launch_extras<T, Tile, D, 1, kFewRowStages>(p, num_ctas, stream);
  if (rows <= 16) return launch_extras<T, Tile, D, 2, kStages>(p, num_ctas, stream);
  if constexpr (D == 256) {
    return cudaErrorInvalidValue;
  } else {
    return launch_extras<T, Tile, D, 4, kStages>(p, num_ctas, stream);
  }
}

// Of caches stored as kTile says.
template <typename T, template <typename, int> typename kTile>
cudaError_t launch_head_dim(const DecodeParams& p, int head_dim, int rows, int num_ctas,
                            cudaStream_t stream) {
  constexpr bool kFp8 = kTile<T, 128>::kFp8;
  switch (head_dim) {
    case 64:
      return launch_rows<T, kTile<T, 64>, 64, kFp8 ? 6 : 4>(p, rows, num_ctas, stream);
    case 96:
      return launch_rows<T, kTile<T, 96>, 96, kFp8 ? 3 : 4>(p, rows, num_ctas, stream);
    case 128:
      return launch_rows<T, kTile<T, 128>, 128, 3, kFp8 ? 2 : 3>(p, rows, num_ctas, stream);
    case 256:
      return launch_rows<T, kTile<T, 256>, 256, kFp8 ? 2 : 3>(p, rows, num_ctas, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace sluice
