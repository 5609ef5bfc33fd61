// Interface of cache_blocks.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

namespace sluice {

struct BlockCopies {
  const int64_t* tensors;  // [num_tensors, 3]: address, bytes of a block, where it goes in a row
  const int64_t* rows;     // [num_copies]: addresses of rows, on the device or mapped from the host
  const int* blocks;       // [num_copies]
  int num_tensors, num_copies;
  bool out;  // from blocks to rows; else back
};

// Copies blocks between a cache of many tensors and rows that hold what all of them have of one
// block. Everything is a multiple of 16 bytes. At most max_ctas CTAs work on it.
cudaError_t copy_blocks(const BlockCopies& copies, int max_ctas, cudaStream_t stream);

struct SlotCopies {
  const int64_t* tensors;  // [num_tensors, 2]: address, bytes of a slot
  const int* copies;       // [num_copies, 3]: block to read, block to write, leading slots
  int num_tensors, num_copies, block_size;
};

// Copies the first slots of blocks to other blocks, in each of the tensors. No block that is written
// is read. Addresses and slots are multiples of 16 bytes; at most 65,535 copies.
cudaError_t copy_leading_slots(const SlotCopies& copies, cudaStream_t stream);

struct Dequantization {
  void *k_out, *v_out;           // [num_blocks, block_size, num_kv_heads, D] of 16-bit floats
  const void *k_cache, *v_cache;  // e4m3, the same but for the number of blocks
  const float *k_scale, *v_scale;  // [num_kv_heads]
  const int* blocks;              // [num_blocks]: of the cache
  int num_blocks, block_size, num_kv_heads, head_dim;  // head_dim a multiple of 16
};

// out[i] = cache[blocks[i]] * scale
cudaError_t dequantize_blocks(const Dequantization& d, bool bf16, cudaStream_t stream);

}  // namespace sluice
