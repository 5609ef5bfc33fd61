// GEMMs of dozens of tokens in FP8: weights with a scale for each feature and x with one
// for each token, or both with one for each piece of 128 inputs; see tiled_linear.cuh.

#include "gemm/tiled_linear.cuh"

namespace sluice {
namespace tiled {
namespace {

template <typename T>
struct Fp8 {
  static constexpr int kGroups = 2;
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
        wgmma_fp8(sum, weight_at + stage + step * 2, x_at + stage + step * 2, false);
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

// The weights' scales are those of blocks of block_rows features, x has one for each token; both
// are of a chunk, whose products are scaled before they are added up (arXiv 2412.19437, 3.3.2).
template <typename T>
struct Fp8Blocks : Fp8<T> {
  static __device__ __forceinline__ float scale(const QuantizedLinear&, int, int) { return 1.f; }

#ifdef SLUICE_HOPPER
  template <int kTokens>
  static __device__ __forceinline__ void multiply(float (&sum)[kTokens / 2],
                                                  const QuantizedLinear& p,
                                                  Shared<Fp8Blocks, kTokens>& sm, const Work& work,
                                                  int feature) {
    const int group = threadIdx.x / 128, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    const int chunks = p.k / kChunk;
    const float* of_features[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // Past the end nobody looks.
      const int64_t row = min(feature + warp * 16 + lane / 4 + i * 8, p.features - 1);
      of_features[i] = static_cast<const float*>(p.scales) + row / p.block_rows * chunks;
    }
    const uint64_t weight_at = tile_descriptor(address(sm.stages[0].weight[group]), 16);
    const uint64_t x_at = tile_descriptor(address(sm.stages[0].x[0]), 16);
    wait_for_inputs();  // the scales of x
    Place<Shared<Fp8Blocks, kTokens>::kStages> place;
    for (int chunk = work.begin; chunk < work.end; ++chunk) {
      const float feature_scale[2] = {__ldg(of_features[0] + chunk), __ldg(of_features[1] + chunk)};
      const float* of_tokens =
          p.x_scales + chunk * p.x_scale_stride + work.first_token + lane % 4 * 2;
      float2 token_scale[kTokens / 8];
#pragma unroll
      for (int i = 0; i < kTokens / 8; ++i) {
        token_scale[i] = *reinterpret_cast<const float2*>(of_tokens + i * 8);
      }
      mbarrier_wait(address(&sm.full[place.stage]), place.parity);
      const uint32_t stage = place.stage * sizeof(typename Shared<Fp8Blocks, kTokens>::Stage) / 16;
      float part[kTokens / 2];
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kChunk / 32; ++step) {
        wgmma_fp8(part, weight_at + stage + step * 2, x_at + stage + step * 2, step == 0);
      }
      wgmma_commit();
      wgmma_wait<0>();
      pin(part);
      if (lane == 0) mbarrier_arrive(address(&sm.empty[place.stage]));
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) {
        const float2 of_two = token_scale[i / 4];
        sum[i] += part[i] * (feature_scale[i % 4 / 2] * (i % 2 ? of_two.y : of_two.x));
      }
      place.advance();
    }
  }
#endif
};

// The sums of a chunk take as many registers as those of all: more than 64 tokens would not fit.
template <typename T>
cudaError_t of_scales(const QuantizedLinear& p, int split, cudaStream_t stream) {
  if (p.block_rows == 0) return dispatch<Fp8<T>>(p, split, stream);
  return dispatch<Fp8Blocks<T>, Fp8Blocks<T>, 64>(p, split, stream);
}

}  // namespace
}  // namespace tiled

cudaError_t tiled_fp8_linear(const QuantizedLinear& linear, int split, bool bf16,
                             cudaStream_t stream) {
  if (linear.tokens == 0) return cudaSuccess;
  return bf16 ? tiled::of_scales<__nv_bfloat16>(linear, split, stream)
              : tiled::of_scales<__half>(linear, split, stream);
}

}  // namespace sluice
