// Interface of sampling.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

#include "common/vector.cuh"
#include "sampling/sampling_row.cuh"

namespace sluice {

struct Sampling {
  const void* logits;        // [num_rows, vocab], rows logits_stride elements apart
  const SamplingRow* table;  // [max_rows]
  const int* rows;           // [num_rows], places in the table; -1 = padding, nothing is written
  const int* positions;      // [num_rows]: index in the request of the token being drawn
  int64_t* out;              // [num_rows], written
  int64_t* host_out;         // or null; the same in the host's memory, mapped for the device
  int64_t* tokens;           // or null; the draw goes to tokens[row, position] too
  int64_t logits_stride, tokens_stride;
  int num_rows;
  int vocab;
};

// Temperature, top-k, top-p, min-p and the draw, as kernels/reference.py defines them.
cudaError_t sample(const Sampling& sampling, Dtype dtype, cudaStream_t stream);

struct TokenBitmask {
  void* logits;          // [*, vocab], rows logits_stride elements apart
  const int* bitmask;    // [num_masks, words]: bit i % 32 of word i / 32 allows token i
  const int64_t* rows;   // [num_masks]: the row of logits each mask belongs to
  int64_t logits_stride;
  int num_masks, words, vocab;
};

// Sets the logits of forbidden tokens to -inf.
cudaError_t apply_token_bitmask(const TokenBitmask& mask, Dtype dtype, cudaStream_t stream);

}  // namespace sluice
