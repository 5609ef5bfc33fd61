#include "sampling/logprobs.cuh"
#include "sampling/penalties.cuh"
#include "sampling/sampling.cuh"

namespace sluice {

static_assert(sizeof(SamplingRow) == 32, "the width of Sampling::table");

OP(sample_rows, Sampling) {
  if (args.host != nullptr && args.num_rows > 0) {
    void* mapped = nullptr;
    require(cudaHostGetDevicePointer(&mapped, args.host, 0) == cudaSuccess,
            "host must be pinned int64 memory of at least ", args.num_rows, " elements");
    args.host = static_cast<int64_t*>(mapped);
  }
  return sample(args, call.dtype, call.stream);
}

OP(apply_token_bitmask, TokenBitmask) {
  require(args.words == (args.vocab + 31) / 32, "bitmask must have ", (args.vocab + 31) / 32,
          " words for ", args.vocab, " tokens, got ", args.words);
  return apply_token_bitmask(args, call.dtype, call.stream);
}

OP(token_logprobs, TokenLogprobs) {
  require(args.num_top <= kMaxTopLogprobs && args.num_top <= args.vocab, "num_top must be at most ",
          kMaxTopLogprobs, " and the vocabulary, got ", args.num_top);
  return token_logprobs(args, call.dtype, call.stream);
}

OP(apply_penalties, Penalties) {
  return apply_penalties(args, static_cast<int>(call.size("counts", 0)), call.stream);
}

}  // namespace sluice
