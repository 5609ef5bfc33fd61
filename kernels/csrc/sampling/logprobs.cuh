// Interface of logprobs.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

#include "common/arguments.h"
#include "common/dtype.h"

namespace sluice {

constexpr int kMaxTopLogprobs = 512;

struct TokenLogprobs {
  ARGUMENTS(TokenLogprobs);
  IN(const void*, logits, "T[num_rows, vocab] rows");
  IN(const int64_t*, token_ids, "[>=num_rows]");
  OUT(float*, logprobs, "[num_rows]");  // of the tokens
  OUT(int64_t*, ranks, "[num_rows]");   // one more than the tokens that are likelier
  OUT(int64_t*, top_ids, "[num_rows, num_top]");  // the likeliest; of equal ones the lowest ids
  OUT(float*, top_logprobs, "[num_rows, num_top]");
  STRIDE(int64_t, logits_stride, logits, 0);
  DIM(int, num_rows);
  DIM(int, vocab);
  ARG(int, num_top);  // at most kMaxTopLogprobs, and at most vocab
};

// kernels/reference.py defines it.
cudaError_t token_logprobs(const TokenLogprobs& wanted, Dtype dtype, cudaStream_t stream);

}  // namespace sluice
