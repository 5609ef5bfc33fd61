// Interface of penalties.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

namespace sluice {

struct Penalties {
  float* logits;           // [*, vocab], rows logits_stride elements apart
  const int64_t* tokens;   // [*, tokens_stride]: ids in [0, vocab)
  const int64_t* where;    // [4, num_rows]: row of logits, row of tokens, length, prompt length
  const float* strengths;  // [3, num_rows]: repetition, frequency, presence
  uint32_t* counts;        // [num_ctas, vocab], zero before and after every launch
  int64_t logits_stride, tokens_stride;
  int num_rows;
  int vocab;
};

// Makes tokens that were there before less likely, as kernels/reference.py defines it.
cudaError_t apply_penalties(const Penalties& penalties, int num_ctas, cudaStream_t stream);

}  // namespace sluice
