// All layers of a decoder for a few tokens of a few sequences, in one launch: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

namespace sluice {

constexpr int kMostPersistentTokens = 16;
constexpr int kMostDraftedTokens = 8;  // if sequences have more than one, or layers are tapped
constexpr int kMostPersistentCtas = 160;
constexpr int kMostKvHeads = 32;
constexpr int kExchanges = 3;

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

// What CTAs wait for in the background, each on a line of its own; zero between launches.
struct PersistentCounts {
  alignas(128) int ended;  // layers that a CTA has ended, of all CTAs
  alignas(128) int left;   // CTAs that wait for nothing any more
};

struct PersistentDecoder {
  void* out;      // [tokens, hidden]
  const void* x;  // [tokens, hidden]
  const PersistentLayer* layers;
  const PersistentCaches* caches;
  const float* cos_sin;      // [max_positions, head_dim]: cosines, then sines
  const int64_t* positions;  // [tokens]
  const int64_t* slots;      // [tokens]: where its key and value are stored; -1: nowhere
  const int* blocks;         // [sequences, max_blocks] of the caches
  const int* seq_lens;       // [sequences], the launch's tokens included; 0: padding
  // Workspace.
  PersistentCounts* counts;
  void* residual;     // [tokens, hidden]
  uint8_t* exchange;  // kExchanges times persistent_exchange_bytes(): ones between launches
  int64_t exchange_bytes;
  int64_t max_blocks;
  int tokens, num_layers, hidden, intermediate, q_heads, kv_heads, head_dim, block_size;
  float eps, head_eps, scale;
  int queries;         // tokens of each sequence, its newest, one after the other
  void* const* taps;   // [layers]: where its input is wanted, too, [tokens, hidden]; or null
  int64_t tap_stride;  // from token to token
};

// Most parts that attention is cut into.
inline int persistent_units(int ctas, int kv_heads) {
  return ctas + kMostPersistentTokens * kv_heads;
}

// Of an exchange (persistent_exchange.cuh).
inline int64_t persistent_exchange_bytes(int hidden, int intermediate, int q_heads, int kv_heads,
                                         int head_dim, int ctas) {
  const int64_t heads = 2 * (q_heads + kv_heads);
  const int64_t rows = kMostPersistentTokens * (2 * hidden + intermediate + heads * head_dim);
  const int64_t parts = persistent_units(ctas, kv_heads) * (q_heads / kv_heads);
  const int64_t bytes = 128 + 2 * kMostPersistentTokens * kMostPersistentCtas * 4 + rows * 2 +
                        parts * (head_dim + 2) * 4;
  return (bytes + 127) / 128 * 128;
}

// That a launch has: one on each SM.
int persistent_ctas();

cudaError_t persistent_decoder(const PersistentDecoder& decoder, bool bf16, cudaStream_t stream);

}  // namespace sluice
