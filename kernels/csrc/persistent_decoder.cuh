// All layers of a decoder for one token of each of a few sequences, in one launch: raw pointers
// only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

namespace sluice {

constexpr int kMostPersistentTokens = 16;
constexpr int kMostKvHeads = 32;

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
  alignas(128) int phases;    // CTAs that have ended a phase, of all phases so far
  alignas(128) int attended;  // KV heads of a token whose attention is done, of all layers so far
  alignas(128) int left;      // CTAs that wait for nothing any more
  // Parts of a token's KV head, of all layers so far.
  alignas(128) int heads[kMostPersistentTokens * kMostKvHeads];
};

struct PersistentDecoder {
  void* out;      // [tokens, hidden]
  const void* x;  // [tokens, hidden]
  const PersistentLayer* layers;
  const PersistentCaches* caches;
  const float* cos_sin;      // [max_positions, head_dim]: cosines, then sines
  const int64_t* positions;  // [tokens]
  const int64_t* slots;      // [tokens]: where its key and value are stored; -1: nowhere
  const int* blocks;         // [tokens, max_blocks]: its sequence's blocks of the caches
  const int* seq_lens;       // [tokens], the token included; 0: padding
  // Workspace.
  PersistentCounts* counts;
  void* rows;             // persistent_row_elements() of the weights' type
  float* squares;         // [kMostPersistentTokens, CTAs]
  float* partial_out;     // [persistent_units(), group, head_dim]
  float2* partial_stats;  // [persistent_units(), group]
  int64_t max_blocks;
  int tokens, num_layers, hidden, intermediate, q_heads, kv_heads, head_dim, block_size;
  float eps, head_eps, scale;
};

// Of what phases hand each other.
inline int64_t persistent_row_elements(int hidden, int intermediate, int q_heads, int kv_heads,
                                       int head_dim) {
  const int64_t heads = 2 * (q_heads + kv_heads);
  return kMostPersistentTokens * (2 * hidden + intermediate + heads * head_dim);
}

// Most parts that attention is cut into.
inline int persistent_units(int ctas, int kv_heads) {
  return ctas + kMostPersistentTokens * kv_heads;
}

cudaError_t persistent_decoder(const PersistentDecoder& decoder, bool bf16, cudaStream_t stream);

}  // namespace sluice
