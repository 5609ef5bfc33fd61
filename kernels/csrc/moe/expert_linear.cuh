// Interface of expert_linear.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

#include "common/arguments.h"

namespace sluice {

enum class ExpertFormat { kPlain, kFp8, kInt4 };

// What weights of eight or four bits are multiplied with.
struct ExpertScales {
  ARGUMENTS(ExpertScales);
  // FP8: [num_experts, features / block_rows, k / group_size] float, both rounded up;
  // INT4: [num_experts, features, k / group_size, 2] like x.
  OPTIONAL(const void*, scales, "f32|H[*]");
  ARG_OR(int, block_rows, 1);  // features that share a scale; INT4: 1
  ARG_OR(int, group_size, 1);  // elements of k: a multiple of 64 (FP8) or 32 (INT4)
};

struct ExpertLinear {
  ARGUMENTS(ExpertLinear);
  OUT(void*, out, "H[tokens*top_k, features/gated]");  // a row for each pair
  IN(const void*, x, "H[_, k] 16");                    // a row for each pairs_per_row pairs
  IN(const void*, weight, "H|e4m3|i32[num_experts, features, _] 16");  // of k, four bits: k / 8
  NESTED(ExpertScales, scales);
  ExpertFormat format;
  IN(const int64_t*, experts, "[tokens, top_k]");  // num_experts: none, nothing is written
  int num_pairs;
  DIM(int, num_experts);
  ARG_OR(int, pairs_per_row, 1);
  DIM(int, features);          // a multiple of 16
  DIM(int, k);                 // a multiple of 64, in INT4 of 128
  ARG_OR(bool, gated, false);  // features = [gate | up], out = silu(gate) * up
};

// out[pair] = weight[expert of the pair] x[pair / pairs_per_row]: every pair reads its matrix, so
// where few pairs have the same expert.
cudaError_t expert_linear(const ExpertLinear& linear, bool bf16, cudaStream_t stream);

struct ExpertSum {
  ARGUMENTS(ExpertSum);
  OUT(void*, out, "H[tokens, features]");
  IN(const void*, x, "H[tokens*top_k, k] 16");
  IN(const void*, weight, "H|e4m3|i32[num_experts, features, _] 16");
  NESTED(ExpertScales, scales);
  ExpertFormat format;
  IN(const int64_t*, experts, "[tokens, top_k]");
  IN(const float*, shares, "[tokens, top_k]");  // what an expert counts in a token's sum
  DIM(int, tokens);
  DIM(int, top_k);  // at most 32
  DIM(int, num_experts);
  DIM(int, features);  // as above
  DIM(int, k);
};

// out[token] = the sum over its experts of share * weight[expert] x[pair]. Must follow the
// expert_linear that made x: the routing is complete by then.
cudaError_t expert_sum(const ExpertSum& sum, bool bf16, cudaStream_t stream);

struct CombineExperts {
  ARGUMENTS(CombineExperts);
  OUT(void*, out, "H[tokens, width]");
  IN(const void*, x, "H[tokens*top_k, width] 16");
  IN(const float*, weights, "[tokens, top_k]");
  DIM(int, tokens);
  DIM(int, top_k);
  DIM(int, width);  // a multiple of 8
};

// out[token] = the sum over its pairs of weight * x[pair].
cudaError_t combine_experts(const CombineExperts& combine, bool bf16, cudaStream_t stream);

}  // namespace sluice
