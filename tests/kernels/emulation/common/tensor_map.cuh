// In place of the kernels' own: descriptions that hopper.cuh reads.
#pragma once

#include "common/hopper.cuh"

namespace sluice {

inline CUresult describe_matrix(CUtensorMap* map, CUtensorMapDataType, int, void* base,
                                const cuuint64_t* sizes, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t*, CUtensorMapInterleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                                CUtensorMapFloatOOBfill) {
  if (swizzle != CU_TENSOR_MAP_SWIZZLE_128B) return CUDA_ERROR_INVALID_VALUE;
  const EmulatedMap made = {static_cast<const uint8_t*>(base), static_cast<int64_t>(sizes[0]),
                            static_cast<int64_t>(sizes[1]), static_cast<int64_t>(strides[0]),
                            static_cast<int>(box[0]), static_cast<int>(box[1])};
  static_assert(sizeof(made) <= sizeof(*map));
  std::memcpy(map, &made, sizeof(made));
  return CUDA_SUCCESS;
}

inline auto tensor_map_encoder() { return describe_matrix; }

}  // namespace sluice
