// Builds the inputs of a step on the device: the host sends three integers a sequence, and a token
// sampled by the step before never leaves the device to become the input of this one.

#include "inputs/step_inputs.cuh"

#include <algorithm>

#include "common/dependent_launch.cuh"

namespace sluice {
namespace {

constexpr int kThreads = 256;

// The host's two integers of each CTA's sequence, which travel as arguments (host_values.cu).
template <int kMax>
struct Given {
  int rows[kMax];
  int computed[kMax];
};

struct OnDevice {
  const int* rows;
  const int* computed;
};

// One CTA per sequence, from `first` on.
template <typename Sequences>
__global__ void __launch_bounds__(kThreads)
    step_inputs_kernel(const StepInputs s, const __grid_constant__ Sequences from, int first) {
  wait_for_inputs();
  allow_next();
  const int seq = first + blockIdx.x;
  const int row = from.rows[blockIdx.x];
  const int start = s.cu_queries[seq];
  const int num_queries = s.cu_queries[seq + 1] - start;
  const int computed = row < 0 ? 0 : from.computed[blockIdx.x];
  const int seq_len = row < 0 ? 0 : computed + num_queries;
  if (threadIdx.x == 0) {
    s.seq_lens[seq] = seq_len;
    if (s.sent_rows) s.sent_rows[seq] = row;
  }
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

template <int kMax>
cudaError_t launch_given(const StepInputs& inputs, int first, int num, cudaStream_t stream) {
  Given<kMax> given;
  std::copy_n(inputs.rows + first, num, given.rows);
  std::copy_n(inputs.computed + first, num, given.computed);
  return launch_dependent(step_inputs_kernel<Given<kMax>>, num, kThreads, 0, stream, inputs, given,
                          first);
}

}  // namespace

cudaError_t step_inputs(const StepInputs& inputs, cudaStream_t stream) {
  constexpr int kFew = 32, kMost = 480;  // a kernel's arguments may take 4 KB
  if (inputs.batch == 0) return cudaSuccess;
  if (!inputs.on_host) {
    const OnDevice there = {inputs.rows, inputs.computed};
    return launch_dependent(step_inputs_kernel<OnDevice>, inputs.batch, kThreads, 0, stream, inputs,
                            there, 0);
  }
  if (inputs.batch <= kFew) return launch_given<kFew>(inputs, 0, inputs.batch, stream);
  cudaError_t error = cudaSuccess;
  for (int first = 0; first < inputs.batch && error == cudaSuccess; first += kMost) {
    error = launch_given<kMost>(inputs, first, std::min(kMost, inputs.batch - first), stream);
  }
  return error;
}

}  // namespace sluice
