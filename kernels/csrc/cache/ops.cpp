#include "cache/cache_blocks.cuh"
#include "cache/latent_cache.cuh"

namespace sluice {

OP(copy_blocks, BlockCopies) {
  require(args.max_ctas >= 1, "max_ctas must be at least 1, got ", args.max_ctas);
  return copy_blocks(args, args.max_ctas, call.stream);
}

OP(copy_leading_slots, SlotCopies) {
  require(args.num_copies <= 65535, "at most 65535 copies, got ", args.num_copies);
  require(args.block_size >= 1, "block_size must be at least 1, got ", args.block_size);
  return copy_leading_slots(args, call.stream);
}

OP(dequantize_blocks, Dequantization) {
  require(args.head_dim % 16 == 0, "head_dim must be a multiple of 16, got ", args.head_dim);
  return dequantize_blocks(args, call.bf16(), call.stream);
}

OP(store_latents, StoreLatents) {
  const int64_t width = call.size("q", 2);
  require(args.rotary_dim > 0 && args.rotary_dim % 2 == 0 && args.rank + args.rotary_dim == width,
          "q must be wider than norm by the width of q_turned, an even number, got ", width, ", ",
          args.rank, " and ", args.rotary_dim);
  require_scales(call, "cache", {"scale"});
  return store_latents(args, call.dtype, call.stream);
}

}  // namespace sluice
