// One warp for each token and query head, and one for what the token leaves in the cache.

#include "cache/latent_cache.cuh"
#include "common/dependent_launch.cuh"
#include "quantization/fp8.cuh"

namespace sluice {
namespace {

constexpr int kWarps = 8;

template <typename T, bool kFp8>
__global__ void __launch_bounds__(kWarps * 32) store_latents_kernel(const StoreLatents p) {
  wait_for_inputs();
  allow_next();
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int64_t token = item / (p.heads + 1);
  const int head = static_cast<int>(item % (p.heads + 1));
  if (token >= p.tokens) return;
  const int width = p.rotary_dim + p.rank, half = p.rotary_dim / 2;
  const float* cos = p.cos_sin + p.positions[token] * p.rotary_dim;
  auto rotate = [&](const T* from, auto&& store) {
    for (int i = lane; i < half; i += 32) {
      const float a = to_float(from[p.interleaved ? 2 * i : i]);
      const float b = to_float(from[p.interleaved ? 2 * i + 1 : i + half]);
      store(i, a * cos[i] - b * cos[half + i]);
      store(i + half, b * cos[i] + a * cos[half + i]);
    }
  };
  if (head < p.heads) {
    T* to = static_cast<T*>(p.q) + (token * p.heads + head) * width;
    const T* from = static_cast<const T*>(p.q_turned) + token * p.q_token_stride;
    rotate(from + head * p.q_head_stride, [&](int i, float x) { to[i] = from_float<T>(x); });
    return;
  }
  const int64_t slot = p.slots[token];
  if (slot < 0) return;
  const float factor = kFp8 ? 1.f / *p.scale : 1.f;
  auto store = [&](int i, float x) {
    if constexpr (kFp8) {
      static_cast<uint8_t*>(p.cache)[slot * width + i] = to_e4m3(rounded<T>(x) * factor);
    } else {
      static_cast<T*>(p.cache)[slot * width + i] = from_float<T>(x);
    }
  };
  const T* latent = static_cast<const T*>(p.kv) + token * width;
  rotate(latent + p.rank, store);
  float squares = 0.f;
  for (int i = lane; i < p.rank; i += 32) squares += to_float(latent[i]) * to_float(latent[i]);
#pragma unroll
  for (int d = 16; d > 0; d /= 2) squares += __shfl_xor_sync(~0u, squares, d);
  const float scale = rsqrtf(squares / p.rank + p.eps);
  const T* norm = static_cast<const T*>(p.norm);
  for (int i = lane; i < p.rank; i += 32) {
    const float normed = weighted<T, false>(to_float(latent[i]), scale, to_float(norm[i]));
    store(p.rotary_dim + i, normed);
  }
}

template <typename T>
cudaError_t launch(const StoreLatents& p, cudaStream_t stream) {
  const int64_t items = static_cast<int64_t>(p.tokens) * (p.heads + 1);
  auto kernel = p.scale ? store_latents_kernel<T, true> : store_latents_kernel<T, false>;
  return launch_dependent(kernel, (items + kWarps - 1) / kWarps, kWarps * 32, 0, stream, p);
}

}  // namespace

cudaError_t store_latents(const StoreLatents& latents, Dtype dtype, cudaStream_t stream) {
  if (latents.tokens == 0) return cudaSuccess;
  return with_type(dtype, [&](auto type) {
    return launch<typename decltype(type)::type>(latents, stream);
  });
}

}  // namespace sluice
