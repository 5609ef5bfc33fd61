// All layers of a decoder for a few tokens of a few sequences, in one launch: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

#include "common/arguments.h"

namespace sluice {

constexpr int kMostPersistentTokens = 16;
constexpr int kMostDraftedTokens = 8;  // if sequences have more than one, or layers are aux
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
  ARGUMENTS(PersistentDecoder);
  OUT(void*, out, "H[tokens, hidden]");
  IN(const void*, x, "H[tokens, hidden] 16");
  IN(const PersistentLayer*, layers, "i64[num_layers, 9]");
  IN(const PersistentCaches*, caches, "i64[num_layers, 2]");
  IN(const float*, cos_sin, "[_, head_dim]");  // of each position: cosines, then sines
  IN(const int64_t*, positions, "[tokens]");
  IN(const int64_t*, slots, "[tokens]");  // where its key and value are stored; -1: nowhere
  IN(const int*, blocks, "[sequences, _] rows");  // of the caches
  IN(const int*, seq_lens, "[sequences]");  // the launch's tokens included; 0: padding
  // Workspace.
  IN(PersistentCounts*, counts, "i32[64]");
  IN(void*, residual, "H[16, hidden] 16");  // [kMostPersistentTokens, hidden]
  IN(uint8_t*, exchange, "[3, exchange_bytes] 16");  // kExchanges; ones between launches
  DIM(int64_t, exchange_bytes);                      // persistent_exchange_bytes()
  STRIDE(int64_t, max_blocks, blocks, 0);
  DIM(int, tokens);
  DIM(int, num_layers);
  DIM(int, hidden);
  ARG(int, intermediate);
  ARG(int, q_heads);
  ARG(int, kv_heads);
  ARG(int, head_dim);
  ARG(int, block_size);
  ARG(float, eps);
  ARG(float, head_eps);
  ARG(float, scale);
  int queries;  // tokens of each sequence, its newest, one after the other
  OPTIONAL(void* const*, aux_states, "i64[num_layers]");  // where its input is wanted, too, or null
  ARG_OR(int64_t, aux_stride, 0);                   // from token to token
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
