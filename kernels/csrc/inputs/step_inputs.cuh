// Interface of step_inputs.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

namespace sluice {

struct StepInputs {
  const int64_t* tokens;   // [num_rows, tokens_stride]: known token ids of each row
  const int* block_table;  // [num_rows, table_stride]
  const int* rows;         // [batch]; -1 = padding, of any number of tokens
  const int* computed;     // [batch]: position of the first token of the step
  bool on_host;            // both in the host's memory, and read before step_inputs returns
  int* sent_rows;          // [batch], written with the rows; or null
  const int* cu_queries;   // [batch + 1], prefix sums of the step's tokens
  int64_t* token_ids;      // [num_tokens], written
  int64_t* positions;      // [num_tokens], written; 0 for padding
  int64_t* slots;          // [num_tokens], written; -1 for padding
  int* seq_lens;           // [batch], written: the step's tokens included; 0 for padding
  int* batch_table;        // [batch, table_stride], written as far as the sequence has blocks
  int64_t tokens_stride;
  int table_stride;
  int block_size;
  int batch;
};

// What a forward pass needs to know of each token, from three integers a sequence.
cudaError_t step_inputs(const StepInputs& inputs, cudaStream_t stream);

}  // namespace sluice
