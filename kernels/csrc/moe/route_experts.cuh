// Interface of route_experts.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

#include "common/vector.cuh"

namespace sluice {

constexpr int kMaxRoutedExperts = 512;
constexpr int kMaxChosenExperts = 32;  // of a token; and the most groups of experts

struct RouteExperts {
  const void* logits;  // [tokens, num_experts], contiguous
  const float* bias;   // [num_experts], added to the scores to choose by them; or null
  int64_t* experts;    // [tokens, top_k], the best first
  float* weights;      // [tokens, top_k]
  int tokens, num_experts, top_k;
  int num_groups;     // of neighbouring experts; divides num_experts
  int top_k_groups;   // experts are chosen from the best groups only
  bool sigmoid;       // scores are sigmoids in place of a softmax
  bool renormalize;   // the weights of a token sum to 1 ...
  float scale;        // ... times this
};

// Which experts each token goes to, and with what weights. Of equal scores the first expert's wins.
cudaError_t route_experts(const RouteExperts& route, Dtype dtype, cudaStream_t stream);

struct GroupPairs {
  const int64_t* experts;  // [num_pairs]; num_experts: none
  int* order;              // [num_pairs]: the pairs, sorted by expert
  int* tiles;              // [3, max_tiles]: expert (num_experts: none), first place, end in order
  int num_pairs, num_experts, rows, max_tiles;
};

// Sorts the pairs of tokens and experts by expert and cuts them into tiles of `rows`.
cudaError_t group_pairs(const GroupPairs& pairs, cudaStream_t stream);

}  // namespace sluice
