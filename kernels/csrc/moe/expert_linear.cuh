// Interface of expert_linear.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

namespace sluice {

enum class ExpertFormat { kPlain, kFp8, kInt4 };

// What weights of eight or four bits are multiplied with.
struct ExpertScales {
  const void* data;  // FP8: [num_experts, features / block_rows, k / group_size] float, both
                     // rounded up; INT4: [num_experts, features, k / group_size, 2] like x
  int block_rows;    // features that share a scale; INT4: 1
  int group_size;    // elements of k: a multiple of 64 (FP8) or 32 (INT4)
};

struct ExpertLinear {
  void* out;               // [num_pairs, outputs], contiguous
  const void* x;           // [num_pairs / pairs_per_row, k], contiguous
  const void* weight;      // [num_experts, features, k] in its format, contiguous
  ExpertScales scales;
  ExpertFormat format;
  const int64_t* experts;  // [num_pairs]; num_experts: none, nothing is written
  int num_pairs, num_experts, pairs_per_row;
  int features;  // a multiple of 16
  int k;         // a multiple of 64, in INT4 of 128
  bool gated;    // features = [gate | up], out = silu(gate) * up, outputs = features / 2
};

// out[pair] = weight[expert of the pair] x[pair / pairs_per_row]: every pair reads its matrix, so
// where few pairs have the same expert.
cudaError_t expert_linear(const ExpertLinear& linear, bool bf16, cudaStream_t stream);

struct ExpertSum {
  void* out;               // [tokens, features], contiguous
  const void* x;           // [tokens * top_k, k], contiguous
  const void* weight;      // [num_experts, features, k] in its format, contiguous
  ExpertScales scales;
  ExpertFormat format;
  const int64_t* experts;  // [tokens, top_k]
  const float* shares;     // [tokens, top_k]: what an expert counts in a token's sum
  int tokens, top_k;       // at most 32
  int num_experts, features, k;  // as above
};

// out[token] = the sum over its experts of share * weight[expert] x[pair]. Must follow the
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
