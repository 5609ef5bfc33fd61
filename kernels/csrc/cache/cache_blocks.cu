// Blocks of the KV cache: between it and rows elsewhere (swap), from block to block (prefixes), and
// from FP8 to 16 bits.

#include "attention/decode_tile.cuh"
#include "cache/cache_blocks.cuh"
#include "common/vector.cuh"

namespace sluice {
namespace {

constexpr int kThreads = 256;
constexpr int kInFlight = 4;  // loads of a thread: a host's memory is far away

// Copies n vectors with all threads of the CTA.
__device__ void copy_vectors(uint4* to, const uint4* from, int64_t n) {
  for (int64_t base = threadIdx.x; base < n; base += kInFlight * kThreads) {
    uint4 x[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t at = base + i * kThreads;
      if (at < n) x[i] = from[at];
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t at = base + i * kThreads;
      if (at < n) to[at] = x[i];
    }
  }
}

__global__ void __launch_bounds__(kThreads) copy_blocks_kernel(const BlockCopies c) {
  const int64_t items = static_cast<int64_t>(c.num_copies) * c.num_tensors;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const int64_t copy = item / c.num_tensors;
    const int64_t* tensor = c.tensors + item % c.num_tensors * 3;
    const int64_t bytes = tensor[1];
    auto* block = reinterpret_cast<uint4*>(tensor[0] + c.blocks[copy] * bytes);
    auto* row = reinterpret_cast<uint4*>(c.rows[copy] + tensor[2]);
    if (c.out) {
      copy_vectors(row, block, bytes / 16);
    } else {
      copy_vectors(block, row, bytes / 16);
    }
  }
}

__global__ void __launch_bounds__(kThreads) copy_leading_slots_kernel(const SlotCopies c) {
  const int64_t* tensor = c.tensors + blockIdx.x * 2;
  const int* copy = c.copies + blockIdx.y * 3;
  const int64_t slot_bytes = tensor[1], block_bytes = c.block_size * slot_bytes;
  copy_vectors(reinterpret_cast<uint4*>(tensor[0] + copy[1] * block_bytes),
               reinterpret_cast<const uint4*>(tensor[0] + copy[0] * block_bytes),
               copy[2] * slot_bytes / 16);
}

// 16 elements from e4m3, times scale.
template <typename T>
__device__ void widen_vector(T* to, const uint8_t* from, float scale) {
  const uint4 stored = *reinterpret_cast<const uint4*>(from);
  const uint32_t words[4] = {stored.x, stored.y, stored.z, stored.w};
  Vector<T> out[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t halves[2];
    widen_e4m3(words[i], halves[0], halves[1]);
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const float2 x = __half22float2(reinterpret_cast<const __half2&>(halves[pair]));
      out[i / 2].x[i % 2 * 4 + pair * 2] = from_float<T>(x.x * scale);
      out[i / 2].x[i % 2 * 4 + pair * 2 + 1] = from_float<T>(x.y * scale);
    }
  }
  reinterpret_cast<Vector<T>*>(to)[0] = out[0];
  reinterpret_cast<Vector<T>*>(to)[1] = out[1];
}

template <typename T>
__global__ void __launch_bounds__(kThreads) dequantize_blocks_kernel(const Dequantization d) {
  const int64_t row_vectors = d.num_kv_heads * d.head_dim / 16;  // of a token
  const int64_t block_vectors = d.block_size * row_vectors;
  const int64_t index = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (index >= d.num_blocks * block_vectors) return;
  const int64_t within = index % block_vectors;
  const int64_t from = (d.blocks[index / block_vectors] * block_vectors + within) * 16;
  const int head = static_cast<int>(within % row_vectors) * 16 / d.head_dim;
  widen_vector(static_cast<T*>(d.k_out) + index * 16,
               static_cast<const uint8_t*>(d.k_cache) + from, d.k_scale[head]);
  widen_vector(static_cast<T*>(d.v_out) + index * 16,
               static_cast<const uint8_t*>(d.v_cache) + from, d.v_scale[head]);
}

}  // namespace

cudaError_t copy_blocks(const BlockCopies& copies, int max_ctas, cudaStream_t stream) {
  const int64_t items = static_cast<int64_t>(copies.num_copies) * copies.num_tensors;
  if (items == 0) return cudaSuccess;
  const int ctas = static_cast<int>(min(items, static_cast<int64_t>(max_ctas)));
  copy_blocks_kernel<<<ctas, kThreads, 0, stream>>>(copies);
  return cudaGetLastError();
}

cudaError_t copy_leading_slots(const SlotCopies& copies, cudaStream_t stream) {
  if (copies.num_copies == 0 || copies.num_tensors == 0) return cudaSuccess;
  const dim3 ctas(copies.num_tensors, copies.num_copies);
  copy_leading_slots_kernel<<<ctas, kThreads, 0, stream>>>(copies);
  return cudaGetLastError();
}

cudaError_t dequantize_blocks(const Dequantization& d, bool bf16, cudaStream_t stream) {
  const int64_t vectors = static_cast<int64_t>(d.num_blocks) * d.block_size * d.num_kv_heads *
                          d.head_dim / 16;
  if (vectors == 0) return cudaSuccess;
  const int ctas = static_cast<int>((vectors + kThreads - 1) / kThreads);
  if (bf16) {
    dequantize_blocks_kernel<__nv_bfloat16><<<ctas, kThreads, 0, stream>>>(d);
  } else {
    dequantize_blocks_kernel<__half><<<ctas, kThreads, 0, stream>>>(d);
  }
  return cudaGetLastError();
}

}  // namespace sluice
