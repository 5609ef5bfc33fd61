// The small operations between the GEMMs of a transformer layer: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

#include "common/arguments.h"
#include "common/dtype.h"

namespace sluice {

// out[i] = weight * x[i] / sqrt(mean(x[i]^2) + eps), rows of `width` elements (RMSNorm,
// arXiv:1910.07467).
struct RmsNorm {
  ARGUMENTS(RmsNorm);
  OUT(void*, out, "T[rows, width]");
  IN(const void*, x, "T[rows, width] rows16");
  IN(const void*, weight, "T|f32[width]");
  ARG(float, eps);
  OPTIONAL(void*, residual, "T[rows, width]");      // x is added to it, and the sum normalised
  OPTIONAL(const void*, inner, "weight[width]");  // x is normed with it before the addition
  STRIDE(int64_t, x_stride, x, 0);
  DIM(int, rows);
  DIM(int, width);  // a multiple of 16 bytes, at most 64 KiB
  bool wide;        // the weights are float32, and x is not
};

cudaError_t rms_norm(const RmsNorm& norm, Dtype dtype, cudaStream_t stream);

enum class Activation { kSilu, kGeluTanh };

struct GatedMul {
  ARGUMENTS(GatedMul);
  OUT(void*, out, "T[rows, width]");
  IN(const void*, x, "T[rows, 2*width] 16");
  DIM(int, rows);
  DIM(int, width);  // a multiple of 16 bytes
};

// out[i, j] = activation(x[i, j]) * x[i, width + j].
cudaError_t gated_mul(void* out, const void* x, int rows, int width, Activation activation,
                      Dtype dtype, cudaStream_t stream);

struct RopeParams {
  ARGUMENTS(RopeParams);
  IN(void*, q, "T[tokens, q_heads, head_dim] rows16");  // rotated in place
  IN(const void*, k, "T[tokens, kv_heads, head_dim] rows16");  // as far apart as rows of q
  IN(const void*, v, "T[tokens, kv_heads, head_dim] rows16");
  IN(void*, k_cache, "T|e4m3[_, _, kv_heads, head_dim]");  // by slots: block, place in it
  IN(void*, v_cache, "k_cache[_, _, kv_heads, head_dim]");
  IN(const float*, cos_sin, "[_, rotary_dim]");  // of each position: cosines, then sines
  IN(const int64_t*, positions, "[tokens]");
  IN(const int64_t*, slots, "[tokens]");  // -1 = padding, nothing is written to the cache
  // Weights of an RMSNorm of each head before the rotation.
  OPTIONAL(const void*, q_norm, "T|f32[head_dim]");
  OPTIONAL(const void*, k_norm, "q_norm[head_dim]");
  bool wide_norms;  // the weights are float32, and q is not
  STRIDE(int64_t, row_stride, q, 0);
  DIM(int, tokens);
  DIM(int, q_heads);
  DIM(int, kv_heads);
  DIM(int, head_dim);
  DIM(int, rotary_dim);
  ARG_OR(float, eps, 0);
  OPTIONAL(const float*, k_scale, "[kv_heads]");  // what an e4m3 cache will be multiplied with
  OPTIONAL(const float*, v_scale, "[kv_heads]");
};

// Rotary embedding (arXiv:2104.09864, halves convention) of q and k, and the write of k and v into
// the paged cache.
cudaError_t rope_and_cache(const RopeParams& params, Dtype dtype, cudaStream_t stream);

}  // namespace sluice
