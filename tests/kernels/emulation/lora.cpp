// A library for test_emulated_lora.py: the product with adapters, and both parts of what is
// added to any other.

#include "lora/lora.cuh"

struct Call {
  void *out, *low, *counters, *x, *weight, *bias, *down, *up, *ranks, *ends, *slots, *tokens;
  int num_tokens, features, k, x_stride, num_tiles, parts, max_rank, rows, gated, bf16;
};

sluice::Lora adapters_of(const Call& c) {
  auto ints = [](const void* at) { return static_cast<const int*>(at); };
  return {c.down,         c.up,        ints(c.ranks), ints(c.ends), ints(c.slots),
          ints(c.tokens), c.num_tiles, c.parts,       c.parts,      c.max_rank,
          c.rows};
}

extern "C" int multiply(const Call& c) {
  sluice::LoraLinear p = {};
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
  p.adapters = adapters_of(c);
  return sluice::lora_linear(p, c.bf16, nullptr);
}

extern "C" int add(const Call& c) {
  sluice::ShrinkLora shrink = {};
  shrink.low = static_cast<float*>(c.low);
  shrink.x = c.x;
  shrink.adapters = adapters_of(c);
  shrink.x_stride = c.x_stride;
  shrink.tokens = c.num_tokens;
  shrink.k = c.k;
  if (int error = sluice::shrink_lora(shrink, c.bf16, nullptr)) return error;
  sluice::ExpandLora expand = {};
  expand.out = c.out;
  expand.low = shrink.low;
  expand.adapters = shrink.adapters;
  expand.tokens = c.num_tokens;
  expand.features = c.features;
  return sluice::expand_lora(expand, c.bf16, nullptr);
}
