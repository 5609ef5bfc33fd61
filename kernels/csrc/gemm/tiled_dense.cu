// GEMMs of dozens of tokens with weights of 16 bits; see tiled_linear.cuh.

#include "gemm/dense_linear.cuh"
#include "gemm/tiled_linear.cuh"

namespace sluice {
namespace tiled {
namespace {

template <typename T, int kWarpgroups>
struct Dense {
  using Linear = DenseLinear;
  static constexpr int kGroups = kWarpgroups;
  static constexpr int kChunk = 64;
  using Out = T;
  using Row = T;
  using X = T;
  static constexpr CUtensorMapDataType kRowType = std::is_same_v<T, __half>
                                                      ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                      : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  static constexpr CUtensorMapDataType kXType = kRowType;
  static constexpr int kRowBytes = kChunk * sizeof(T);
  static constexpr int kXBytes = kChunk * sizeof(T);

  static __device__ __forceinline__ float scale(const DenseLinear&, int, int) { return 1.f; }

#ifdef SLUICE_HOPPER
  template <int kSums>
  static __device__ __forceinline__ void mma(float (&sum)[kSums], uint64_t a, uint64_t b) {
    wgmma<T>(sum, a, b, false);
  }

  template <int kTokens>
  static __device__ __forceinline__ void multiply(float (&sum)[kTokens / 2], const DenseLinear&,
                                                  Shared<Dense, kTokens>& sm, const Work& work,
                                                  int) {
    multiply_stored<Dense, kTokens>(sum, sm, work);
  }
#endif
};

template <typename T>
cudaError_t of_features(const DenseLinear& p, cudaStream_t stream) {
  return p.shape == 128 ? dispatch<Dense<T, 2>>(p, p.split, stream)
                        : dispatch<Dense<T, 4>>(p, p.split, stream);
}

}  // namespace
}  // namespace tiled

cudaError_t tiled_linear(const DenseLinear& linear, bool bf16, cudaStream_t stream) {
  if (linear.tokens == 0) return cudaSuccess;
  return bf16 ? tiled::of_features<__nv_bfloat16>(linear, stream)
              : tiled::of_features<__half>(linear, stream);
}

}  // namespace sluice
