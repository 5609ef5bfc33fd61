// The small operations between the matrix products of a transformer layer: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

#include "common/vector.cuh"

namespace sluice {

// out[i] = weight * x[i] / sqrt(mean(x[i]^2) + eps), rows of `width` elements (RMSNorm,
// arXiv:1910.07467). With a residual, first residual[i] += x[i], and the sum is normalised.
struct RmsNorm {
  void* out;           // [rows, width], contiguous
  const void* x;       // [rows, width], rows x_stride elements apart
  void* residual;      // [rows, width], contiguous, or null
  const void* weight;  // [width], of x's type or float32
  const void* inner;   // like weight: x is normed with it before the addition; or null
  int64_t x_stride;
  int rows;
  int width;  // a multiple of 16 bytes, at most 64 KiB
  float eps;
  bool wide;  // the weights are float32, and x is not
};

cudaError_t rms_norm(const RmsNorm& norm, Dtype dtype, cudaStream_t stream);

enum class Activation { kSilu, kGeluTanh };

// out[i, j] = activation(x[i, j]) * x[i, width + j] for x of [rows, 2 * width].
cudaError_t gated_mul(void* out, const void* x, int rows, int width, Activation activation,
                      Dtype dtype, cudaStream_t stream);

struct RopeParams {
  void* q;               // [tokens, q_heads, D], rotated in place; rows row_stride elements apart
  const void* k;         // [tokens, kv_heads, D], same row stride
  const void* v;         // [tokens, kv_heads, D], same row stride
  void* k_cache;         // [slots, kv_heads, D]; of q's type or e4m3
  void* v_cache;
  const float* cos_sin;  // [max_positions, rotary_dim]: cosines, then sines
  const int64_t* positions;  // [tokens]
  const int64_t* slots;      // [tokens]; -1 = padding, nothing is written to the cache
  const void* q_norm;        // [D] weights of a per-head RMSNorm before the rotation, or null
  const void* k_norm;
  bool wide_norms;           // the weights are float32, and q is not
  int64_t row_stride;
  int tokens, q_heads, kv_heads, head_dim, rotary_dim;
  float eps;
  const float* k_scale;  // [kv_heads], what an e4m3 cache will be multiplied with; else null
  const float* v_scale;
};

// Rotary embedding (arXiv:2104.09864, halves convention) of q and k, and the write of k and v into
// the paged cache.
cudaError_t rope_and_cache(const RopeParams& params, Dtype dtype, cudaStream_t stream);

}  // namespace sluice
