// Interface of cache_blocks.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

#include "common/arguments.h"

namespace sluice {

struct BlockCopies {
  ARGUMENTS(BlockCopies);
  // The address of each tensor, the bytes of one of its blocks, and where in a row they go.
  IN(const int64_t*, tensors, "[num_tensors, 3]");
  IN(const int64_t*, rows, "[num_copies]");  // addresses, on the device or by mapped_address
  IN(const int*, blocks, "[num_copies]");
  DIM(int, num_tensors);
  DIM(int, num_copies);
  ARG(bool, out);      // from blocks to rows; else back
  ARG(int, max_ctas);  // how much of the GPU it may take
};

// Copies blocks between a cache of many tensors and rows that hold what all of them have of one
// block. Everything is a multiple of 16 bytes. At most max_ctas CTAs work on it.
cudaError_t copy_blocks(const BlockCopies& copies, int max_ctas, cudaStream_t stream);

struct SlotCopies {
  ARGUMENTS(SlotCopies);
  IN(const int64_t*, tensors, "[num_tensors, 2]");  // of each its address, and bytes of a slot
  IN(const int*, copies, "[num_copies, 3]");  // block to read, block to write, leading slots
  DIM(int, num_tensors);
  DIM(int, num_copies);
  ARG(int, block_size);
};

// Copies the first slots of blocks to other blocks, in each of the tensors. No block that is written
// is read. Addresses and slots are multiples of 16 bytes; at most 65,535 copies.
cudaError_t copy_leading_slots(const SlotCopies& copies, cudaStream_t stream);

struct Dequantization {
  ARGUMENTS(Dequantization);
  IN(void*, k_out, "H[>=num_blocks, block_size, num_kv_heads, head_dim]");  // written
  IN(void*, v_out, "H[>=num_blocks, block_size, num_kv_heads, head_dim]");  // written
  IN(const void*, k_cache, "e4m3[_, block_size, num_kv_heads, head_dim]");
  IN(const void*, v_cache, "e4m3[_, block_size, num_kv_heads, head_dim]");
  IN(const float*, k_scale, "[num_kv_heads]");
  IN(const float*, v_scale, "[num_kv_heads]");
  IN(const int*, blocks, "[num_blocks]");  // of the cache
  DIM(int, num_blocks);
  DIM(int, block_size);
  DIM(int, num_kv_heads);
  DIM(int, head_dim);  // a multiple of 16
};

// out[i] = cache[blocks[i]] * scale
cudaError_t dequantize_blocks(const Dequantization& d, bool bf16, cudaStream_t stream);

}  // namespace sluice
