// GEMMs of few tokens: the weight streams from HBM once, straight into the registers of
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

#include "common/dependent_launch.cuh"
#include "gemm/dense_linear.cuh"
#include "gemm/skinny_sums.cuh"

namespace sluice {
namespace {

template <typename T, int kWarps, int kGroups>  // groups of 8 tokens
__global__ void __launch_bounds__(kWarps * 32, kSmWarps / kWarps)
    skinny_linear_kernel(const DenseLinear p) {
  __shared__ float partial[kSkinnyTiles][kWarps][kSkinnyFeatures][kGroups * 8 + 1];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  float sum[kSkinnyTiles][kGroups][4] = {};
  const auto rows = skinny_rows<T>(p, blockIdx.x);
  sum_skinny<T, kWarps>(sum, rows, SkinnyTokens<T>(p), warp, p.k / kSkinnyChunk);
  allow_next();

#pragma unroll
  for (int tile = 0; tile < kSkinnyTiles; ++tile) {
    keep_skinny(partial[tile][warp], sum[tile], g, t);
  }
  __syncthreads();
  store_skinny_sums<T, kWarps * 32>(p, blockIdx.x, partial);
}

template <typename T, int kWarps>
cudaError_t launch_warps(const DenseLinear& p, cudaStream_t stream) {
  auto kernel = p.tokens <= 8 ? skinny_linear_kernel<T, kWarps, 1>
                              : skinny_linear_kernel<T, kWarps, 2>;
  const int tiles = p.features / kSkinnyFeatures;
  const int ctas = (tiles + kSkinnyTiles - 1) / kSkinnyTiles;
  return launch_dependent(kernel, ctas, kWarps * 32, 0, stream, p);
}

template <typename T>
cudaError_t launch(const DenseLinear& p, cudaStream_t stream) {
  switch (p.shape) {
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

cudaError_t skinny_linear(const DenseLinear& linear, bool bf16, cudaStream_t stream) {
  if (linear.tokens == 0) return cudaSuccess;
  return bf16 ? launch<__nv_bfloat16>(linear, stream) : launch<__half>(linear, stream);
}

}  // namespace sluice
