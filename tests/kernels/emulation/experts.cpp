// A library with two functions for test_emulated_experts.py.

#include "moe/expert_linear.cuh"

struct Call {
  void *out, *x, *weight, *scales, *experts, *shares;
  int tokens, top_k, pairs_per_row, num_experts, features, k, group_size, block_rows;
  int gated, bf16, format;
};

template <typename Product>
Product product_of(const Call& c) {
  Product p = {};
  p.out = c.out;
  p.x = c.x;
  p.weight = c.weight;
  p.scales = {c.scales, c.block_rows, c.group_size};
  p.format = static_cast<sluice::ExpertFormat>(c.format);
  p.experts = static_cast<const int64_t*>(c.experts);
  p.num_experts = c.num_experts;
  p.features = c.features;
  p.k = c.k;
  return p;
}

extern "C" int expert_linear(const Call& c) {
  auto p = product_of<sluice::ExpertLinear>(c);
  p.num_pairs = c.tokens * c.top_k;
  p.pairs_per_row = c.pairs_per_row;
  p.gated = c.gated;
  return sluice::expert_linear(p, c.bf16, nullptr);
}

extern "C" int expert_sum(const Call& c) {
  auto p = product_of<sluice::ExpertSum>(c);
  p.shares = static_cast<const float*>(c.shares);
  p.tokens = c.tokens;
  p.top_k = c.top_k;
  return sluice::expert_sum(p, c.bf16, nullptr);
}
