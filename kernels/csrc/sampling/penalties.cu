// Penalties for tokens that were there before, in time that grows with the text and not with the
// vocabulary. One CTA a row: it counts the row's tokens in a table of its own, then takes every
// token that it finds counted out of the table again and changes its logit. Whoever takes a token
// out finds its whole count, and nobody else finds it, so each logit is changed exactly once.
//
// Compiled without fast math: the results are those of the reference, bit for bit.

#include "sampling/penalties.cuh"

namespace sluice {
namespace {

constexpr int kThreads = 512;
constexpr uint32_t kInPrompt = 1u << 31;  // beside the number of times it was generated

__global__ void __launch_bounds__(kThreads) penalties_kernel(const Penalties p) {
  uint32_t* counts = p.counts + static_cast<int64_t>(blockIdx.x) * p.vocab;
  for (int i = blockIdx.x; i < p.num_rows; i += gridDim.x) {
    float* logits = p.logits + p.where[i] * p.logits_stride;
    const int64_t* tokens = p.tokens + p.where[p.num_rows + i] * p.tokens_stride;
    const int64_t length = p.where[2 * p.num_rows + i], prompt = p.where[3 * p.num_rows + i];
    const float repetition = p.strengths[i];
    const float frequency = p.strengths[p.num_rows + i];
    const float presence = p.strengths[2 * p.num_rows + i];
    const int64_t first = repetition == 1.f ? prompt : 0;  // the others leave the prompt alone

    for (int64_t at = first + threadIdx.x; at < length; at += kThreads) {
      if (at < prompt) {
        atomicOr(&counts[tokens[at]], kInPrompt);
      } else {
        atomicAdd(&counts[tokens[at]], 1);
      }
    }
    __syncthreads();
    for (int64_t at = first + threadIdx.x; at < length; at += kThreads) {
      const uint32_t found = atomicExch(&counts[tokens[at]], 0);
      if (found == 0) continue;
      const float count = static_cast<float>(found & ~kInPrompt);
      float logit = logits[tokens[at]];
      logit = logit > 0.f ? __fdiv_rn(logit, repetition) : __fmul_rn(logit, repetition);
      logit = __fsub_rn(logit, __fmul_rn(frequency, count));
      if (count > 0.f) logit = __fsub_rn(logit, presence);
      logits[tokens[at]] = logit;
    }
    __syncthreads();  // the table is empty again
  }
}

}  // namespace

cudaError_t apply_penalties(const Penalties& penalties, int num_ctas, cudaStream_t stream) {
  if (penalties.num_rows == 0) return cudaSuccess;
  const int grid = penalties.num_rows < num_ctas ? penalties.num_rows : num_ctas;
  penalties_kernel<<<grid, kThreads, 0, stream>>>(penalties);
  return cudaGetLastError();
}

}  // namespace sluice
