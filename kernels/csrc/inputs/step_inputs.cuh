// Interface of step_inputs.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

#include "common/arguments.h"

namespace sluice {

struct StepInputs {
  ARGUMENTS(StepInputs);
  IN(const int64_t*, tokens, "[_, tokens_stride]");  // known token ids of each row
  IN(const int*, block_table, "[_, table_stride]");
  IN(const int*, rows, "[batch] anywhere");  // -1 = padding, of any number of tokens
  IN(const int*, computed, "[>=batch] anywhere");  // position of the first token of the step
  bool on_host;  // both in the host's memory, and read before step_inputs returns
  OPTIONAL(int*, sent_rows, "[>=batch]");         // written with the rows
  IN(const int*, cu_queries, "[>=batch + 1]");    // prefix sums of the step's tokens
  IN(int64_t*, token_ids, "[num_tokens]");        // written
  IN(int64_t*, positions, "[>=num_tokens]");      // written; 0 for padding
  IN(int64_t*, slots, "[>=num_tokens]");          // written; -1 for padding
  IN(int*, seq_lens, "[>=batch]");  // written: the step's tokens included; 0 for padding
  IN(int*, batch_table, "[>=batch, table_stride]");  // written as far as the sequence has blocks
  DIM(int64_t, tokens_stride);
  DIM(int, table_stride);
  ARG(int, block_size);
  DIM(int, batch);
};

// Looks up the tokens [computed, computed + queries) of each of the rows: what a forward pass needs to know of each token, from three integers a sequence.
cudaError_t step_inputs(const StepInputs& inputs, cudaStream_t stream);

}  // namespace sluice
