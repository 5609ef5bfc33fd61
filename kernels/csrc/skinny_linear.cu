// Matrix products of few tokens: the weight streams from HBM once, straight into the registers of
// the tensor-core instruction that uses it.
//
// A CTA makes 32 output features, two tiles of 16, for which it reads x once: for one tile, 16
// tokens are as many bytes as its weight. Its warps share the sum over k between them, 64 elements
// each in turn, so that together they read some lines of memory in a row of every feature. An SM
// has 16 warps of a few large CTAs or of many small ones: what is best depends on how evenly they
// fill the GPU, and is measured (kernels/products.py).
//
// The 16x16 operand of an MMA wants elements (2t, 2t+1) and (2t+8, 2t+9) of a row in thread t; a
// sum has no order, so each thread instead loads 16 bytes in a row and deals them out over two
// instructions, and x is dealt out in the same way. The first weights are under way before the
// kernel that makes x has ended.

#include "dependent_launch.cuh"
#include "mma.cuh"
#include "skinny_linear.cuh"
#include "skinny_output.cuh"
#include "vector.cuh"

namespace sluice {
namespace {

constexpr int kSmWarps = 16;
constexpr int kTiles = 2;   // of 16 features, of a CTA
constexpr int kChunk = 64;  // elements of k that a warp takes at a time

struct Weights {
  uint4 low[kTiles][2], high[kTiles][2];  // features g and g + 8, two halves of a chunk
};

template <typename T, int kWarps, int kGroups>  // groups of 8 tokens
__global__ void __launch_bounds__(kWarps * 32, kSmWarps / kWarps)
    skinny_linear_kernel(const SkinnyLinear p) {
  __shared__ float partial[kTiles][kWarps][kSkinnyFeatures][kGroups * 8 + 1];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const int num_chunks = p.k / kChunk;
  // Where the second tile would lie behind the last feature, it is the first one once more.
  const bool whole = skinny_feature<kTiles>(kSkinnyFeatures, p.features, false) < p.features;
  auto feature = [&](int row) -> int64_t {
    return skinny_feature<kTiles>(row, p.features, p.gated);
  };
  const int64_t to_high = (feature(8) - feature(0)) * p.k;
  const int64_t to_tile = whole ? (feature(kSkinnyFeatures) - feature(0)) * p.k : 0;
  const T* weights = static_cast<const T*>(p.weight) + feature(g) * p.k + t * 8;

  auto load = [&](Weights& w, int chunk) {
    if (chunk >= num_chunks) return;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const T* at = weights + tile * to_tile + chunk * kChunk + half * 32;
        w.low[tile][half] = load_once(at);
        w.high[tile][half] = load_once(at + to_high);
      }
    }
  };

  float sum[kTiles][kGroups][4] = {};
  Weights now, next;
  load(now, warp);
  wait_for_inputs();
  const T* x = static_cast<const T*>(p.x) + t * 8;
  for (int chunk = warp; chunk < num_chunks; chunk += kWarps) {
    load(next, chunk + kWarps);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const int token = group * 8 + g;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (token < p.tokens) {
          const T* row = x + token * p.x_stride;
          v = *reinterpret_cast<const uint4*>(row + chunk * kChunk + half * 32);
        }
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const uint4 a = now.low[tile][half], b = now.high[tile][half];
          Half<T>::mma(sum[tile][group], {a.x, b.x, a.y, b.y}, v.x, v.y);
          Half<T>::mma(sum[tile][group], {a.z, b.z, a.w, b.w}, v.z, v.w);
        }
      }
    }
    now = next;
  }
  allow_next();

#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) keep_skinny(partial[tile][warp], sum[tile], g, t);
  __syncthreads();
  store_skinny<T, kWarps * 32, kTiles>(
      p.out, p.tokens, p.features, p.gated, [&](int row, int token) {
        float total = 0.f;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
          total += partial[row / kSkinnyFeatures][w][row % kSkinnyFeatures][token];
        }
        if (p.bias) {
          const int at = skinny_feature<kTiles>(row, p.features, p.gated);
          total += to_float(static_cast<const T*>(p.bias)[at]);
        }
        return rounded<T>(total);
      });
}

template <typename T, int kWarps>
cudaError_t launch_warps(const SkinnyLinear& p, cudaStream_t stream) {
  auto kernel = p.tokens <= 8 ? skinny_linear_kernel<T, kWarps, 1>
                              : skinny_linear_kernel<T, kWarps, 2>;
  const int tiles = p.features / kSkinnyFeatures;
  return launch_dependent(kernel, (tiles + kTiles - 1) / kTiles, kWarps * 32, 0, stream, p);
}

template <typename T>
cudaError_t launch(const SkinnyLinear& p, cudaStream_t stream) {
  switch (p.warps) {
    case 4:
      return launch_warps<T, 4>(p, stream);
    case 8:
      return launch_warps<T, 8>(p, stream);
    case 16:
      return launch_warps<T, 16>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t skinny_linear(const SkinnyLinear& linear, bool bf16, cudaStream_t stream) {
  if (linear.tokens == 0) return cudaSuccess;
  return bf16 ? launch<__nv_bfloat16>(linear, stream) : launch<__half>(linear, stream);
}

}  // namespace sluice
