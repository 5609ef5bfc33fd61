// Launches the one kernel for a layer's products of given sizes.
#pragma once

#include "common/tensor_map.cuh"
#include "gemm/layer_products_sums.cuh"

namespace sluice::products {

template <typename T, typename Sizes>
__global__ void __launch_bounds__(kThreads, 1)
    layer_products_kernel(const __grid_constant__ Launch p) {
#ifdef SLUICE_HOPPER
  extern __shared__ __align__(1024) uint8_t raw[];
  run_cta<T, Sizes>(p, *reinterpret_cast<Shared*>(raw));
#endif
}

// Boxes of `box_rows` rows by a chunk of k.
inline bool describe(CUtensorMap& map, const void* matrix, int rows, int k, int box_rows,
                     bool bf16) {
  const auto encode = tensor_map_encoder();
  if (!encode) return false;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(k) * 2};
  const cuuint32_t box[] = {kChunk, static_cast<cuuint32_t>(box_rows)}, steps[] = {1, 1};
  const auto type = bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  return encode(&map, type, 2, const_cast<void*>(matrix), sizes, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <typename Sizes>
bool describe_all(Launch& made, bool bf16) {
  constexpr int kHidden = Sizes::kHidden, kIntermediate = Sizes::kIntermediate;
  const LayerProducts& p = made.layer;
  const auto weight = [&](int which, const void* matrix, int rows, int k, int box_rows) {
    return describe(made.weights[which], matrix, rows, k, box_rows, bf16);
  };
  const auto tokens = [&](int which, const void* rows, int k) {
    return describe(made.x[which], rows, p.tokens, k, kTokens, bf16);
  };
  return weight(kOutput, p.output, kHidden, kHidden, kTileRows) &&
         weight(kGateUp, p.gate_up, 2 * kIntermediate, kHidden, Sizes::kGates) &&
         weight(kDown, p.down, kHidden, kIntermediate, kTileRows) &&
         tokens(kOutput, p.attended, kHidden) && tokens(kGateUp, p.mid, kHidden) &&
         tokens(kDown, p.activated, kIntermediate) &&
         (!p.qkv_weight ||
          (weight(kQkv, p.qkv_weight, Sizes::kQkvFeatures, kHidden, Sizes::kQkvRows) &&
           tokens(kQkv, p.next, kHidden)));
}

template <typename Kernel>
cudaError_t allow_memory(Kernel kernel) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
}

// Not a cooperative launch, which cannot begin while the kernel before still runs: `fit` says
// beforehand what such a one would make sure of.
template <typename T, typename Sizes>
cudaError_t launch(const LayerProducts& layer, cudaStream_t stream) {
  const auto kernel = layer_products_kernel<T, Sizes>;
  static const cudaError_t allowed = allow_memory(kernel);
  if (allowed != cudaSuccess) return allowed;
  Launch made = {};
  made.layer = layer;
  made.num_products = layer.qkv_weight ? kQkv + 1 : kQkv;
  if (!describe_all<Sizes>(made, std::is_same_v<T, __nv_bfloat16>)) return cudaErrorInvalidValue;
  return launch_dependent_clusters(kernel, Sizes::kCtas, kThreads, sizeof(Shared), stream, kPair,
                                   made);
}

template <typename T, typename Sizes>
bool fits() {
  const auto kernel = layer_products_kernel<T, Sizes>;
  int device = 0, is_shared = 1, clusters = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&is_shared, cudaDevAttrMpsEnabled, device);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {kPair, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = Sizes::kCtas;
  config.blockDim = kThreads;
  config.dynamicSmemBytes = sizeof(Shared);
  config.attrs = &attribute;
  config.numAttrs = 1;
  const bool known = allow_memory(kernel) == cudaSuccess &&
                     cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) == cudaSuccess;
  cudaGetLastError();  // else torch's next launch would be blamed for it
  return known && !is_shared && clusters * kPair >= Sizes::kCtas;
}

// Floats of the workspace, see LayerProducts.
template <typename Sizes>
constexpr int64_t kSquaresSize = int64_t{2} * 2 * Sizes::kCtas * kTokens;

template <typename Sizes>
constexpr int64_t kPartsSize =
    int64_t{Sizes::kTiles} * kSplit * kSplit * (Sizes::kPartSize + Sizes::kQkvPartSize);

}  // namespace sluice::products
