// Matrix products of few tokens: the weight streams from HBM once, straight into the registers of
// the tensor-core instruction that uses it.
//
// A CTA makes 16 output features; its warps share the sum over k between them, 64 elements each in
// turn, so that together they read 1 KB in a row of every feature. The 16x16 operand of an MMA
// wants elements (2t, 2t+1) and (2t+8, 2t+9) of a row in thread t; a sum has no order, so each
// thread instead loads 16 bytes in a row and deals them out over two instructions, and x is dealt
// out in the same way. The first weights are under way before the kernel that makes x has ended.

#include "dependent_launch.cuh"
#include "mma.cuh"
#include "skinny_linear.cuh"
#include "skinny_output.cuh"
#include "vector.cuh"

namespace sluice {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kChunk = 64;  // elements of k that a warp takes at a time
constexpr int kUnroll = 2;  // chunks under way per warp

struct Weights {
  uint4 low[kUnroll][2], high[kUnroll][2];  // features g and g + 8, two halves of a chunk
};

template <typename T, int kGroups>  // groups of 8 tokens
__global__ void __launch_bounds__(kThreads, 2) skinny_linear_kernel(const SkinnyLinear p) {
  __shared__ float partial[kWarps][kSkinnyFeatures][kGroups * 8 + 1];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const int num_chunks = p.k / kChunk;
  const int low = skinny_feature(g, p.features, p.gated);
  const int high = skinny_feature(g + 8, p.features, p.gated);
  const T* low_row = static_cast<const T*>(p.weight) + static_cast<int64_t>(low) * p.k + t * 8;
  const T* high_row = static_cast<const T*>(p.weight) + static_cast<int64_t>(high) * p.k + t * 8;

  auto load = [&](Weights& w, int first) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int chunk = first + u * kWarps;
      if (chunk >= num_chunks) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        w.low[u][half] = load_once(low_row + chunk * kChunk + half * 32);
        w.high[u][half] = load_once(high_row + chunk * kChunk + half * 32);
      }
    }
  };

  float sum[kGroups][4] = {};
  Weights now, next;
  load(now, warp);
  wait_for_inputs();
  const T* x = static_cast<const T*>(p.x) + t * 8;
  for (int first = warp; first < num_chunks; first += kWarps * kUnroll) {
    load(next, first + kWarps * kUnroll);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int chunk = first + u * kWarps;
      if (chunk >= num_chunks) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 a = now.low[u][half], b = now.high[u][half];
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          const int token = group * 8 + g;
          uint4 v = make_uint4(0, 0, 0, 0);
          if (token < p.tokens) {
            const T* row = x + token * p.x_stride;
            v = *reinterpret_cast<const uint4*>(row + chunk * kChunk + half * 32);
          }
          Half<T>::mma(sum[group], {a.x, b.x, a.y, b.y}, v.x, v.y);
          Half<T>::mma(sum[group], {a.z, b.z, a.w, b.w}, v.z, v.w);
        }
      }
    }
    now = next;
  }
  allow_next();

  keep_skinny(partial[warp], sum, g, t);
  __syncthreads();
  store_skinny<T>(p.out, p.tokens, p.features, p.gated, [&](int row, int token) {
    float total = 0.f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += partial[w][row][token];
    if (p.bias) {
      const int at = skinny_feature(row, p.features, p.gated);
      total += to_float(static_cast<const T*>(p.bias)[at]);
    }
    return rounded<T>(total);
  });
}

template <typename T>
cudaError_t launch(const SkinnyLinear& p, cudaStream_t stream) {
  auto kernel = p.tokens <= 8 ? skinny_linear_kernel<T, 1> : skinny_linear_kernel<T, 2>;
  return launch_dependent(kernel, p.features / kSkinnyFeatures, kThreads, 0, stream, p);
}

}  // namespace

cudaError_t skinny_linear(const SkinnyLinear& linear, bool bf16, cudaStream_t stream) {
  if (linear.tokens == 0) return cudaSuccess;
  return bf16 ? launch<__nv_bfloat16>(linear, stream) : launch<__half>(linear, stream);
}

}  // namespace sluice
