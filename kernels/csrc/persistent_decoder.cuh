// All layers of a decoder for one token of one sequence, in one launch: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

namespace sluice {

constexpr int kMostKvHeads = 32;
constexpr int kMostKeySplits = 32;

// A layer's weights; norms and biases are of the weights' type, and null where there are none.
struct PersistentLayer {
  const void* input_norm;     // [hidden]
  const void* qkv;            // [(q_heads + 2 * kv_heads) * head_dim, hidden], q | k | v
  const void* qkv_bias;       // or null
  const void* q_norm;         // [head_dim], of an RMSNorm of each head before the rotation; or null
  const void* k_norm;         // likewise
  const void* output;         // [hidden, q_heads * head_dim]
  const void* attended_norm;  // [hidden]
  const void* gate_up;        // [2 * intermediate, hidden], gate | up
  const void* down;           // [hidden, intermediate]
};

// A layer's keys and values: [blocks, block_size, kv_heads, head_dim].
struct PersistentCaches {
  void *k, *v;
};

// What CTAs wait for, each on a line of its own; zero between launches.
struct PersistentCounts {
  alignas(128) int phases;           // CTAs that have ended a phase, of all phases so far
  alignas(128) int attended;         // KV heads whose attention is done, of all layers so far
  alignas(128) int left;             // CTAs that wait for nothing any more
  alignas(128) int heads[kMostKvHeads];  // parts of a KV head's attention, of all layers so far
};

struct PersistentDecoder {
  void* out;      // [hidden]
  const void* x;  // [hidden]
  const PersistentLayer* layers;
  const PersistentCaches* caches;
  const float* cos_sin;      // [max_positions, head_dim]: cosines, then sines
  const int64_t* positions;  // [1]
  const int64_t* slots;      // [1]: where the token's key and value are stored; -1: nowhere
  const int* blocks;         // [max_blocks]: the sequence's blocks of the caches
  const int* seq_lens;       // [1], the token included; 0: padding
  // Workspace.
  PersistentCounts* counts;
  void* rows;            // persistent_row_elements() of the weights' type
  float* partial_out;    // [kv_heads, kMostKeySplits, group, head_dim]
  float2* partial_stats;  // [kv_heads, kMostKeySplits, group]
  int num_layers, hidden, intermediate, q_heads, kv_heads, head_dim, block_size;
  float eps, head_eps, scale;
};

// Of the rows that phases hand each other.
inline int64_t persistent_row_elements(int hidden, int intermediate, int q_heads, int kv_heads,
                                       int head_dim) {
  return 2 * hidden + intermediate + 2 * (q_heads + kv_heads) * head_dim;
}

cudaError_t persistent_decoder(const PersistentDecoder& decoder, bool bf16, cudaStream_t stream);

}  // namespace sluice
