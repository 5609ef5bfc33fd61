// What a decoder layer computes behind its attention, and the next layer's projections, for 17 to
// 64 tokens in one launch: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

namespace sluice {

constexpr int kMostProductTokens = 64;

// Rows are contiguous, weights and norms of one type of 16 bits. The normed rows come without the
// scale of their norm: whoever multiplies them scales the sums.
struct LayerProducts {
  void* residual;          // [tokens, hidden]: the layer's input, and then its output
  void* qkv;               // [tokens, features]: of the next layer; null behind the last one
  const void* attended;    // [tokens, hidden]
  const void* output;      // [hidden, hidden], the weight of attention's output
  const void* mid_norm;    // [hidden], of the RMSNorm before the gates and ups
  const void* gate_up;     // [2 * intermediate, hidden], gate | up
  const void* down;        // [hidden, intermediate]
  const void* next_norm;   // [hidden], of the RMSNorm before the next layer; null behind the last
  const void* qkv_weight;  // [features, hidden] of the next layer; null behind the last
  // Workspace, of all launches one after the other.
  void* mid;        // [tokens, hidden]
  void* activated;  // [tokens, intermediate]
  void* next;       // [tokens, hidden]
  float* squares;   // layer_products_squares()
  float* parts;     // layer_products_parts(): empty (exchange.cuh) at first
  int* counts;      // kProductCounts: zero between launches
  int tokens, hidden, intermediate, features;
  float eps;
};

constexpr int kProductCounts = 4 * 32;  // each on a line of its own

// Floats of the workspace for layers of these sizes; 0: there is no kernel for them.
int64_t layer_products_squares(int hidden, int intermediate, int features);
int64_t layer_products_parts(int hidden, int intermediate, int features);

// Whether this GPU, or the part of it that this process has, runs all CTAs of a launch at a time,
// as it must: they wait for each other. Not so if processes run side by side on it (by MPS).
bool layer_products_fit(int hidden, int intermediate, int features, bool bf16);

cudaError_t layer_products(const LayerProducts& layer, bool bf16, cudaStream_t stream);

}  // namespace sluice
