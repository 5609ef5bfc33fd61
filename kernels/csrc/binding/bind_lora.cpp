// Registers the products with low-rank adapters with torch.

#include "binding/bind_layer.h"
#include "binding/bind_linear.h"
#include "lora/lora.cuh"

namespace {

using at::Tensor;
using sluice::check;
using sluice::check_int32;
using sluice::check_start;

// The arguments that describe a layer's adapters; `features` are the layer's.
sluice::Lora adapters_of(const Tensor& x, const Tensor& down, const Tensor& up,
                            const Tensor& ranks, const Tensor& ends, const Tensor& slots,
                            const Tensor& tokens, int64_t features) {
  TORCH_CHECK(x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf,
              "x and out must be bfloat16 or float16");
  for (const Tensor& t : {down, up}) {
    TORCH_CHECK(t.is_cuda() && t.is_contiguous() && t.scalar_type() == x.scalar_type(),
                "down and up must be contiguous and of the type of x and out");
  }
  const int64_t parts = ends.numel() - 1, max_rank = up.size(2);
  TORCH_CHECK(down.dim() == 4 && up.dim() == 3 && down.size(0) == up.size(0) &&
                  down.size(1) == parts && down.size(2) == max_rank && up.size(1) == features,
              "down must be [slots, parts, rank, k] and up [slots, ", features, ", rank]");
  check_start(down, "down");
  check_start(up, "up");
  TORCH_CHECK(max_rank % 16 == 0, "rank must be a multiple of 16, got ", max_rank);
  TORCH_CHECK(ranks.is_cuda() && ranks.scalar_type() == at::kInt && ranks.dim() == 2 &&
                  ranks.stride(1) == 1 && ranks.size(0) == up.size(0) && ranks.size(1) == parts,
              "ranks must be int32 [slots, ", parts, "]");
  check_int32(ends, "ends");
  for (const Tensor& t : {slots, tokens}) {
    TORCH_CHECK(t.is_cuda() && t.scalar_type() == at::kInt && t.is_contiguous(),
                "slots and tokens must be contiguous int32");
  }
  TORCH_CHECK(tokens.dim() == 2 && tokens.size(0) == slots.numel() &&
                  (tokens.size(1) == sluice::kLoraTokens ||
                   tokens.size(1) % (2 * sluice::kLoraTokens) == 0),
              "tokens must be [tiles, ", sluice::kLoraTokens, " or a multiple of ",
              2 * sluice::kLoraTokens, "]");
  sluice::Lora a = {};
  a.down = down.data_ptr();
  a.up = up.data_ptr();
  a.ranks = ranks.data_ptr<int>();
  a.ends = ends.data_ptr<int>();
  a.slots = slots.data_ptr<int>();
  a.tokens = tokens.data_ptr<int>();
  a.num_tiles = slots.numel();
  a.parts = parts;
  a.rank_stride = ranks.stride(0);
  a.max_rank = max_rank;
  a.rows = tokens.size(1);
  return a;
}

// Sums over slices of k, for each token and rank.
void check_low(const Tensor& low, int64_t num_tokens, const Tensor& down) {
  TORCH_CHECK(low.is_cuda() && low.is_contiguous() && low.scalar_type() == at::kFloat &&
                  low.dim() == 3 && low.size(0) == sluice::kLoraSlices &&
                  low.size(1) == num_tokens && low.size(2) == down.size(1) * down.size(2),
              "low must be contiguous float32 [", sluice::kLoraSlices,
              ", tokens, parts * rank]");
  check_start(low, "low");
}

void lora_linear(Tensor out, Tensor low, Tensor counters, const Tensor& x,
                     const Tensor& weight, const std::optional<Tensor>& bias, const Tensor& down,
                     const Tensor& up, const Tensor& ranks, const Tensor& ends,
                     const Tensor& slots, const Tensor& tokens, bool gated) {
  auto p = sluice::linear_of<sluice::LoraLinear>(out, x, weight, bias, gated, 64);
  p.adapters = adapters_of(x, down, up, ranks, ends, slots, tokens, p.features);
  TORCH_CHECK(tokens.size(1) == sluice::kLoraTokens &&
                  slots.numel() <= sluice::kLoraTiles && p.adapters.parts <= 32,
              "tokens must be [at most ", sluice::kLoraTiles, ", ", sluice::kLoraTokens,
              "], of at most 32 parts");
  TORCH_CHECK(p.tokens <= sluice::kLoraLinearTokens && down.size(3) == p.k && weight.dim() == 2 &&
                  weight.size(1) == p.k,
              "x must be [at most ", sluice::kLoraLinearTokens, ", k], weight [features, k]");
  for (const Tensor& t : {out, weight}) {
    TORCH_CHECK(t.is_cuda() && t.is_contiguous() && t.scalar_type() == x.scalar_type(),
                "out and weight must be contiguous and of x's type");
  }
  check_low(low, p.tokens, down);
  check_int32(counters, "counters");
  TORCH_CHECK(counters.numel() == 2, "counters must be [2]");
  p.low = low.data_ptr<float>();
  p.counters = counters.data_ptr<int>();
  const c10::cuda::CUDAGuard guard(x.device());
  check(sluice::lora_linear(p, sluice::is_bf16(x), c10::cuda::getCurrentCUDAStream()),
        "lora_linear");
}

}  // namespace

namespace sluice::bindings {

void shrink_lora(Tensor low, const Tensor& x, const Tensor& down, const Tensor& up,
                     const Tensor& ranks, const Tensor& ends, const Tensor& slots,
                     const Tensor& tokens) {
  sluice::ShrinkLora p = {};
  p.adapters = adapters_of(x, down, up, ranks, ends, slots, tokens, up.size(1));
  TORCH_CHECK(x.is_cuda() && x.dim() == 2 && x.stride(1) == 1 && x.stride(0) % 8 == 0 &&
                  x.size(1) == down.size(3) && x.size(1) % 64 == 0,
              "x must be [tokens, ", down.size(3),
              "], a multiple of 64, its rows multiples of 8 elements apart");
  check_start(x, "x");
  p.x = x.data_ptr();
  p.x_stride = x.stride(0);
  p.tokens = x.size(0);
  p.k = x.size(1);
  check_low(low, p.tokens, down);
  p.low = low.data_ptr<float>();
  const c10::cuda::CUDAGuard guard(x.device());
  check(sluice::shrink_lora(p, sluice::is_bf16(x), c10::cuda::getCurrentCUDAStream()),
        "shrink_lora");
}

void expand_lora(Tensor out, const Tensor& low, const Tensor& down, const Tensor& up,
                     const Tensor& ranks, const Tensor& ends, const Tensor& slots,
                     const Tensor& tokens) {
  sluice::ExpandLora p = {};
  TORCH_CHECK(out.is_cuda() && out.is_contiguous() && out.dim() == 2 && out.size(1) % 8 == 0,
              "out must be contiguous [tokens, features], features a multiple of 8");
  p.adapters = adapters_of(out, down, up, ranks, ends, slots, tokens, out.size(1));
  check_start(out, "out");
  p.out = out.data_ptr();
  p.tokens = out.size(0);
  p.features = out.size(1);
  check_low(low, p.tokens, down);
  p.low = low.data_ptr<float>();
  const c10::cuda::CUDAGuard guard(out.device());
  check(sluice::expand_lora(p, sluice::is_bf16(out), c10::cuda::getCurrentCUDAStream()),
        "expand_lora");
}

}  // namespace sluice::bindings

TORCH_LIBRARY_FRAGMENT(sluice_cuda, m) {
  m.def(
      "shrink_lora(Tensor(a!) low, Tensor x, Tensor down, Tensor up, Tensor ranks, "
      "Tensor ends, Tensor slots, Tensor tokens) -> ()");
  m.def(
      "expand_lora(Tensor(a!) out, Tensor low, Tensor down, Tensor up, Tensor ranks, "
      "Tensor ends, Tensor slots, Tensor tokens) -> ()");
  m.def(
      "lora_linear(Tensor(a!) out, Tensor(b!) low, Tensor(c!) counters, Tensor x, "
      "Tensor weight, Tensor? bias, Tensor down, Tensor up, Tensor ranks, Tensor ends, "
      "Tensor slots, Tensor tokens, bool gated) -> ()");
}

TORCH_LIBRARY_IMPL(sluice_cuda, CUDA, m) {
  m.impl("shrink_lora", &sluice::bindings::shrink_lora);
  m.impl("expand_lora", &sluice::bindings::expand_lora);
  m.impl("lora_linear", &lora_linear);
}
