// Matrix products of dozens of tokens in FP8: weights with a scale for each feature, x with one for
// each token; see tiled_linear.cuh.

#include "tiled_linear.cuh"

namespace sluice {
namespace tiled {
namespace {

template <typename T>
struct Fp8 {
  using Out = T;
  using Row = uint8_t;
  using X = uint8_t;
  static constexpr CUtensorMapDataType kRowType = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  static constexpr CUtensorMapDataType kXType = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  static constexpr int kRowBytes = kChunk;
  static constexpr int kXBytes = kChunk;

  static __device__ __forceinline__ float scale(const QuantizedLinear& p, int feature, int token) {
    return static_cast<const float*>(p.scales)[feature] * p.x_scales[token];
  }

#ifdef SLUICE_HOPPER
  template <int kTokens>
  static __device__ __forceinline__ void multiply(float (&sum)[kTokens / 2],
                                                  const QuantizedLinear&,
                                                  Shared<Fp8, kTokens>& sm, const Work& work,
                                                  int) {
    const int group = threadIdx.x / 128, lane = threadIdx.x % 32;
    const uint64_t weight_at = tile_descriptor(address(sm.stages[0].weight[group]), 16);
    const uint64_t x_at = tile_descriptor(address(sm.stages[0].x[0]), 16);
    Place<Shared<Fp8, kTokens>::kStages> place, last;
    for (int chunk = work.begin; chunk < work.end; ++chunk) {
      mbarrier_wait(address(&sm.full[place.stage]), place.parity);
      const uint32_t stage = place.stage * sizeof(typename Shared<Fp8, kTokens>::Stage) / 16;
      pin(sum);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kChunk / 32; ++step) {
        wgmma_fp8(sum, weight_at + stage + step * 2, x_at + stage + step * 2);
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (chunk > work.begin && lane == 0) mbarrier_arrive(address(&sm.empty[last.stage]));
      last = place;
      place.advance();
    }
    wgmma_wait<0>();
    pin(sum);
  }
#endif
};

}  // namespace
}  // namespace tiled

cudaError_t tiled_fp8_linear(const QuantizedLinear& linear, int split, bool bf16,
                             cudaStream_t stream) {
  if (linear.tokens == 0) return cudaSuccess;
  return bf16 ? tiled::dispatch<tiled::Fp8<__nv_bfloat16>>(linear, split, stream)
              : tiled::dispatch<tiled::Fp8<__half>>(linear, split, stream);
}

}  // namespace sluice
