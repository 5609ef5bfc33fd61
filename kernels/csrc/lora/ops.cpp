#include "lora/lora.cuh"

namespace sluice {

static_assert(kLoraSlices == 4, "the first dimension of low");

static void require_adapters(const Lora& adapters) {
  require(adapters.max_rank % 16 == 0, "ranks must be padded to a multiple of 16, got ",
          adapters.max_rank);
  require(adapters.rows == kLoraTokens || adapters.rows % (2 * kLoraTokens) == 0,
          "tile_tokens must have ", kLoraTokens, " columns or a multiple of ", 2 * kLoraTokens,
          ", got ", adapters.rows);
}

OP(lora_linear, LoraLinear) {
  require_adapters(args.adapters);
  require(args.features % 16 == 0 && args.k % 64 == 0,
          "features must be a multiple of 16 and k of 64, got ", args.features, " and ", args.k);
  require(args.tokens <= kLoraLinearTokens, "at most ", kLoraLinearTokens, " tokens, got ",
          args.tokens);
  require(args.adapters.rows == kLoraTokens && args.adapters.num_tiles <= kLoraTiles &&
              args.adapters.parts <= 32,
          "tile_tokens must be [at most ", kLoraTiles, ", ", kLoraTokens, "], of at most 32 parts");
  return lora_linear(args, call.bf16(), call.stream);
}

OP(shrink_lora, ShrinkLora) {
  require_adapters(args.adapters);
  require(args.k % 64 == 0, "k must be a multiple of 64, got ", args.k);
  return shrink_lora(args, call.bf16(), call.stream);
}

OP(expand_lora, ExpandLora) {
  require_adapters(args.adapters);
  require(args.features % 8 == 0, "features must be a multiple of 8, got ", args.features);
  return expand_lora(args, call.bf16(), call.stream);
}

}  // namespace sluice
