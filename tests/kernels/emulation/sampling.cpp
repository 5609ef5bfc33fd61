// A library with one function for test_emulated_sampling.py.

#include "sampling/sampling.cuh"

struct Call {
  const void *logits, *table;
  const int *rows, *positions;
  int64_t *out, *host_out, *tokens;
  int64_t logits_stride, tokens_stride;
  int num_rows, vocab, dtype;
};

extern "C" int sample(const Call& c) {
  sluice::Sampling s = {};
  s.logits = c.logits;
  s.table = static_cast<const sluice::SamplingRow*>(c.table);
  s.rows = c.rows;
  s.positions = c.positions;
  s.out = c.out;
  s.host_out = c.host_out;
  s.tokens = c.tokens;
  s.logits_stride = c.logits_stride;
  s.tokens_stride = c.tokens_stride;
  s.num_rows = c.num_rows;
  s.vocab = c.vocab;
  return sluice::sample(s, static_cast<sluice::Dtype>(c.dtype), nullptr);
}
