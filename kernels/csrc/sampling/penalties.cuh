// Interface of penalties.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

#include "common/arguments.h"

namespace sluice {

struct Penalties {
  ARGUMENTS(Penalties);
  IN(float*, logits, "[_, vocab] rows");            // written
  IN(const int64_t*, tokens, "[_, tokens_stride]");  // ids in [0, vocab)
  IN(const int64_t*, where, "[4, num_rows]");  // row of logits, row of tokens, length, prompt length
  IN(const float*, strengths, "[3, num_rows]");  // repetition, frequency, presence
  IN(uint32_t*, counts, "[_, vocab]");  // of each CTA; zero before and after every launch
  STRIDE(int64_t, logits_stride, logits, 0);
  DIM(int64_t, tokens_stride);
  DIM(int, num_rows);
  DIM(int, vocab);
};

// Makes tokens that were there before less likely, as kernels/reference.py defines it.
cudaError_t apply_penalties(const Penalties& penalties, int num_ctas, cudaStream_t stream);

}  // namespace sluice
