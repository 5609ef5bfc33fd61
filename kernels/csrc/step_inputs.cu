// Builds the inputs of a step on the device: the host sends three integers a sequence, and a token
// sampled by the step before never leaves the device to become the input of this one.

#include "step_inputs.cuh"

namespace sluice {
namespace {

constexpr int kThreads = 256;

// One CTA per sequence.
__global__ void __launch_bounds__(kThreads) step_inputs_kernel(const StepInputs s) {
  const int seq = blockIdx.x;
  const int row = s.rows[seq];
  const int start = s.cu_queries[seq];
  const int num_queries = s.cu_queries[seq + 1] - start;
  const int computed = row < 0 ? 0 : s.computed[seq];
  const int seq_len = row < 0 ? 0 : computed + num_queries;
  if (threadIdx.x == 0) s.seq_lens[seq] = seq_len;
  if (row < 0) {
    for (int i = threadIdx.x; i < num_queries; i += kThreads) {
      s.token_ids[start + i] = 0;
      s.positions[start + i] = 0;
      s.slots[start + i] = -1;
    }
    return;
  }
  const int64_t* tokens = s.tokens + row * s.tokens_stride;
  const int* blocks = s.block_table + static_cast<int64_t>(row) * s.table_stride;
  for (int i = threadIdx.x; i < num_queries; i += kThreads) {
    const int position = computed + i;
    const int64_t block = blocks[position / s.block_size];
    s.token_ids[start + i] = tokens[position];
    s.positions[start + i] = position;
    s.slots[start + i] = block * s.block_size + position % s.block_size;
  }
  int* own = s.batch_table + static_cast<int64_t>(seq) * s.table_stride;
  const int num_blocks = (seq_len + s.block_size - 1) / s.block_size;
  for (int i = threadIdx.x; i < num_blocks; i += kThreads) own[i] = blocks[i];
}

}  // namespace

cudaError_t step_inputs(const StepInputs& inputs, cudaStream_t stream) {
  if (inputs.batch == 0) return cudaSuccess;
  step_inputs_kernel<<<inputs.batch, kThreads, 0, stream>>>(inputs);
  return cudaGetLastError();
}

}  // namespace sluice
