// Interface of route_experts.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

#include "common/arguments.h"
#include "common/dtype.h"

namespace sluice {

constexpr int kMaxRoutedExperts = 512;
constexpr int kMaxChosenExperts = 32;  // of a token; and the most groups of experts

struct RouteExperts {
  ARGUMENTS(RouteExperts);
  IN(const void*, logits, "T[tokens, num_experts]");
  OPTIONAL(const float*, bias, "[num_experts]");  // added to the scores to choose by them
  OUT(int64_t*, experts, "[tokens, top_k]");      // the best first
  OUT(float*, weights, "[tokens, top_k]");
  DIM(int, tokens);
  DIM(int, num_experts);
  ARG(int, top_k);
  ARG_OR(int, num_groups, 1);    // of neighbouring experts; divides num_experts
  ARG_OR(int, top_k_groups, 1);  // experts are chosen from the best groups only
  ARG_OR(bool, sigmoid, false);  // scores are sigmoids in place of a softmax
  ARG_OR(bool, renormalize, false);  // the weights of a token sum to 1 ...
  ARG_OR(float, scale, 1);           // ... times this
};

// Which experts each token goes to, and with what weights. Of equal scores the first expert's wins.
cudaError_t route_experts(const RouteExperts& route, Dtype dtype, cudaStream_t stream);

struct GroupPairs {
  ARGUMENTS(GroupPairs);
  IN(const int64_t*, experts, "[tokens, top_k]");  // num_experts: none
  OUT(int*, order, "[tokens*top_k]");              // the pairs, sorted by expert
  OUT(int*, tiles, "[3, max_tiles]");  // expert (num_experts: none), first place, end in order
  int num_pairs;
  ARG(int, num_experts);
  ARG(int, rows);
  ARG(int, max_tiles);
};

// Sorts the pairs of tokens and experts by expert and cuts them into tiles of `rows`.
cudaError_t group_pairs(const GroupPairs& pairs, cudaStream_t stream);

}  // namespace sluice
