// A library with one function for test_emulated_low_rank.py: the product with adapters.

#include "low_rank_linear.cuh"

struct Call {
  void *out, *low, *counters, *x, *weight, *bias, *down, *up, *ranks, *ends, *slots, *tokens;
  int num_tokens, features, k, x_stride, num_tiles, parts, max_rank, gated, bf16;
};

extern "C" int multiply(const Call& c) {
  sluice::LowRankLinear p = {};
  p.out = c.out;
  p.low = static_cast<float*>(c.low);
  p.counters = static_cast<int*>(c.counters);
  p.x = c.x;
  p.weight = c.weight;
  p.bias = c.bias;
  p.x_stride = c.x_stride;
  p.tokens = c.num_tokens;
  p.features = c.features;
  p.k = c.k;
  p.gated = c.gated;
  auto ints = [](const void* at) { return static_cast<const int*>(at); };
  p.adapters = {c.down,        c.up,           ints(c.ranks), ints(c.ends), ints(c.slots),
                ints(c.tokens), c.num_tiles, c.parts,       c.parts,      c.max_rank};
  return sluice::low_rank_linear(p, c.bf16, nullptr);
}
