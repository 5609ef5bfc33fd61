#include "common/device.cuh"
#include "decoder/persistent_decoder.cuh"

namespace sluice {

static_assert(kMostPersistentTokens == 16 && kExchanges == 3 && sizeof(PersistentCounts) == 64 * 4 &&
                  sizeof(PersistentLayer) == 9 * 8 && sizeof(PersistentCaches) == 2 * 8,
              "sizes of PersistentDecoder's arguments");

// What a cooperative launch can be refused for: a GPU, or the share of it that this process has (a
// slice by MIG, SMs by MPS or of a green context), that has no room for all CTAs at a time, or does
// not launch such kernels at all. Nothing has run then, and the context is as before.
static bool is_refusal(cudaError_t error) {
  switch (error) {
    case cudaErrorCooperativeLaunchTooLarge:  // fewer SMs than CTAs
    case cudaErrorNotSupported:               // no cooperative launches
    case cudaErrorLaunchOutOfResources:       // registers, or shared memory
    case cudaErrorInvalidConfiguration:       // this many threads or CTAs
    case cudaErrorInvalidDeviceFunction:      // compiled for other GPUs
    case cudaErrorNoKernelImageForDevice:
      return true;
    default:
      return false;
  }
}

OP(persistent_decoder, PersistentDecoder) {
  const int64_t sequences = call.size("seq_lens", 0);
  require(args.tokens <= kMostPersistentTokens, "at most ", kMostPersistentTokens,
          " tokens, got ", args.tokens);
  require(sequences ? args.tokens % sequences == 0 : args.tokens == 0, args.tokens,
          " tokens are not equally many of each of ", sequences, " sequences");
  require((args.tokens == sequences && args.aux_states == nullptr) || args.tokens <= kMostDraftedTokens,
          "at most ", kMostDraftedTokens,
          " tokens if a sequence has several or layers are aux, got ", args.tokens);
  require(args.block_size > 0 && args.block_size % 16 == 0,
          "block_size must be a multiple of 16, got ", args.block_size);
  require(args.kv_heads <= kMostKvHeads && args.q_heads % args.kv_heads == 0, "at most ",
          kMostKvHeads, " KV heads that divide ", args.q_heads, ", got ", args.kv_heads);
  const int64_t bytes =
      persistent_exchange_bytes(args.hidden, args.intermediate, args.q_heads, args.kv_heads,
                                args.head_dim, persistent_ctas());
  require(args.exchange_bytes == bytes, "exchange must be [", kExchanges, ", ", bytes, "], got ",
          args.exchange_bytes);
  args.queries = sequences ? static_cast<int>(args.tokens / sequences) : 1;
  const cudaError_t error = persistent_decoder(args, call.bf16(), call.stream);
  if (is_refusal(error)) {
    cudaGetLastError();  // else torch's next launch would be blamed for it
    throw NotServed(std::string(cudaGetErrorName(error)) + ", " + cudaGetErrorString(error));
  }
  return error;
}

}  // namespace sluice
