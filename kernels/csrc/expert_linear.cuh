// Interface of expert_linear.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

namespace sluice {

struct ExpertLinear {
  void* out;               // [num_pairs, outputs], contiguous
  const void* x;           // [num_pairs / pairs_per_row, k], contiguous
  const void* weight;      // [num_experts, features, k], contiguous
  const int64_t* experts;  // [num_pairs]; num_experts: none, nothing is written
  int num_pairs, num_experts, pairs_per_row;
  int features;  // a multiple of 16
  int k;         // a multiple of 64
  bool gated;    // features = [gate | up], out = silu(gate) * up, outputs = features / 2
};

// out[pair] = weight[expert of the pair] x[pair / pairs_per_row]: every pair reads its matrix, so
// where few pairs have the same expert.
cudaError_t expert_linear(const ExpertLinear& linear, bool bf16, cudaStream_t stream);

struct ExpertSum {
  void* out;               // [tokens, features], contiguous
  const void* x;           // [tokens * top_k, k], contiguous
  const void* weight;      // [num_experts, features, k], contiguous
  const int64_t* experts;  // [tokens, top_k]
  const float* scales;     // [tokens, top_k]
  int tokens, top_k;       // at most 32
  int num_experts, features, k;  // as above
};

// out[token] = the sum over its experts of scale * weight[expert] x[pair]. Must follow the
// expert_linear that made x: the routing is complete by then.
cudaError_t expert_sum(const ExpertSum& sum, bool bf16, cudaStream_t stream);

struct CombineExperts {
  void* out;            // [tokens, width], contiguous
  const void* x;        // [tokens * top_k, width], contiguous
  const float* scales;  // [tokens, top_k]
  int tokens, top_k, width;  // a multiple of 8
};

// out[token] = the sum over its pairs of scale * x[pair].
cudaError_t combine_experts(const CombineExperts& combine, bool bf16, cudaStream_t stream);

}  // namespace sluice
