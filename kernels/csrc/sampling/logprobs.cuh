// Interface of logprobs.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

#include "common/vector.cuh"

namespace sluice {

constexpr int kMaxTopLogprobs = 512;

struct TokenLogprobs {
  const void* logits;        // [num_rows, vocab], rows logits_stride elements apart
  const int64_t* token_ids;  // [num_rows]
  float* logprobs;           // [num_rows], written: of the tokens
  int64_t* ranks;            // [num_rows], written: one more than the tokens that are likelier
  int64_t* top_ids;          // [num_rows, num_top], written: the likeliest, then the lowest ids
  float* top_logprobs;       // [num_rows, num_top], written
  int64_t logits_stride;
  int num_rows, vocab;
  int num_top;  // at most kMaxTopLogprobs, and at most vocab
};

// kernels/reference.py defines it.
cudaError_t token_logprobs(const TokenLogprobs& wanted, Dtype dtype, cudaStream_t stream);

}  // namespace sluice
