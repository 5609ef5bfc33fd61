// Registers the decoder of a few tokens with torch.

#include "binding/bind.h"
#include "common/device.cuh"
#include "decoder/persistent_decoder.cuh"

namespace {

using at::Tensor;
using sluice::check_start;

void check_row(const Tensor& t, const Tensor& x, const char* name, int64_t elements) {
  TORCH_CHECK(t.is_cuda() && t.is_contiguous() && t.scalar_type() == x.scalar_type() &&
                  t.numel() == elements,
              name, " must be contiguous, of x's type, and have ", elements, " elements, got ",
              t.numel());
  check_start(t, name);
}

void check_each(const Tensor& t, at::ScalarType type, int64_t tokens, const char* name) {
  TORCH_CHECK(t.is_cuda() && t.is_contiguous() && t.scalar_type() == type && t.dim() == 1 &&
                  t.size(0) == tokens,
              name, " must be contiguous ", type, " [", tokens, "]");
}

// Of a table of pointers, [layers, columns].
template <typename Entry>
const Entry* entries(const Tensor& table, int64_t layers, const char* name) {
  constexpr int64_t kColumns = sizeof(Entry) / sizeof(void*);
  TORCH_CHECK(table.is_cuda() && table.is_contiguous() && table.scalar_type() == at::kLong &&
                  table.dim() == 2 && table.size(0) == layers && table.size(1) == kColumns,
              name, " must be int64 [", layers, ", ", kColumns, "]");
  return static_cast<const Entry*>(table.data_ptr());
}

// What a cooperative launch can be refused for: a GPU, or the share of it that this process has (a
// slice by MIG, SMs by MPS or of a green context), that has no room for all CTAs at a time, or does
// not launch such kernels at all. Nothing has run then, and the context is as before.
bool is_refusal(cudaError_t error) {
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

void check_launch(cudaError_t error) {
  if (is_refusal(error)) {
    cudaGetLastError();  // else torch's next launch would be blamed for it
    TORCH_CHECK_NOT_IMPLEMENTED(false, cudaGetErrorName(error), ", ", cudaGetErrorString(error));
  }
  sluice::check(error, "persistent_decoder");
}

void persistent_decoder(Tensor out, const Tensor& x, const Tensor& layers, const Tensor& caches,
                        const Tensor& cos_sin, const Tensor& positions, const Tensor& slots,
                        const Tensor& block_table, const Tensor& seq_lens,
                        const std::optional<Tensor>& taps, int64_t tap_stride, Tensor counts,
                        Tensor residual, Tensor exchange,
                        int64_t intermediate, int64_t q_heads, int64_t kv_heads, int64_t head_dim,
                        int64_t block_size, double eps, double head_eps, double scale) {
  TORCH_CHECK(x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf,
              "x must be bfloat16 or float16");
  TORCH_CHECK(x.dim() == 2, "x must be [tokens, hidden]");
  const int64_t tokens = x.size(0), hidden = x.size(1);
  TORCH_CHECK(tokens <= sluice::kMostPersistentTokens, "at most ", sluice::kMostPersistentTokens,
              " tokens, got ", tokens);
  check_row(x, x, "x", tokens * hidden);
  check_row(out, x, "out", tokens * hidden);
  check_row(residual, x, "residual", sluice::kMostPersistentTokens * hidden);
  check_each(positions, at::kLong, tokens, "positions");
  check_each(slots, at::kLong, tokens, "slots");
  const int64_t sequences = seq_lens.numel();
  check_each(seq_lens, at::kInt, sequences, "seq_lens");
  TORCH_CHECK(sequences ? tokens % sequences == 0 : tokens == 0, tokens,
              " tokens are not equally many of each of ", sequences, " sequences");
  TORCH_CHECK((tokens == sequences && !taps) || tokens <= sluice::kMostDraftedTokens, "at most ",
              sluice::kMostDraftedTokens,
              " tokens if a sequence has several or layers are tapped, got ", tokens);
  TORCH_CHECK(block_table.is_cuda() && block_table.scalar_type() == at::kInt &&
                  block_table.dim() == 2 && block_table.size(0) == sequences &&
                  block_table.stride(1) == 1,
              "block_table must be int32 [", sequences, ", max_blocks] with contiguous rows");
  TORCH_CHECK(block_size > 0 && block_size % 16 == 0, "block_size must be a multiple of 16, got ",
              block_size);
  TORCH_CHECK(cos_sin.is_cuda() && cos_sin.is_contiguous() &&
                  cos_sin.scalar_type() == at::kFloat && cos_sin.dim() == 2 &&
                  cos_sin.size(1) == head_dim,
              "cos_sin must be contiguous float32 [max_positions, ", head_dim, "]");
  TORCH_CHECK(kv_heads <= sluice::kMostKvHeads && q_heads % kv_heads == 0, "at most ",
              sluice::kMostKvHeads, " KV heads that divide ", q_heads, ", got ", kv_heads);
  const int64_t exchange_bytes = sluice::persistent_exchange_bytes(
      hidden, intermediate, q_heads, kv_heads, head_dim, sluice::persistent_ctas());
  TORCH_CHECK(exchange.is_cuda() && exchange.is_contiguous() &&
                  exchange.scalar_type() == at::kByte &&
                  exchange.numel() == sluice::kExchanges * exchange_bytes,
              "exchange must be contiguous uint8 of ", sluice::kExchanges * exchange_bytes,
              " elements, got ", exchange.numel());
  check_start(exchange, "exchange");
  TORCH_CHECK(counts.is_cuda() && counts.is_contiguous() && counts.scalar_type() == at::kInt &&
                  counts.nbytes() == sizeof(sluice::PersistentCounts),
              "counts must be ", sizeof(sluice::PersistentCounts) / 4, " int32");
  sluice::PersistentDecoder p = {};
  p.out = out.data_ptr();
  p.x = x.data_ptr();
  p.layers = entries<sluice::PersistentLayer>(layers, layers.size(0), "layers");
  p.caches = entries<sluice::PersistentCaches>(caches, layers.size(0), "caches");
  p.cos_sin = cos_sin.data_ptr<float>();
  p.positions = positions.data_ptr<int64_t>();
  p.slots = slots.data_ptr<int64_t>();
  p.blocks = block_table.data_ptr<int>();
  p.seq_lens = seq_lens.data_ptr<int>();
  p.counts = static_cast<sluice::PersistentCounts*>(counts.data_ptr());
  p.residual = residual.data_ptr();
  p.exchange = static_cast<uint8_t*>(exchange.data_ptr());
  p.exchange_bytes = exchange_bytes;
  p.max_blocks = block_table.stride(0);
  p.tokens = tokens;
  p.queries = sequences ? tokens / sequences : 1;
  if (taps) {
    check_each(*taps, at::kLong, layers.size(0), "taps");
    p.taps = static_cast<void* const*>(taps->data_ptr());
    p.tap_stride = tap_stride;
  }
  p.num_layers = layers.size(0);
  p.hidden = hidden;
  p.intermediate = intermediate;
  p.q_heads = q_heads;
  p.kv_heads = kv_heads;
  p.head_dim = head_dim;
  p.block_size = block_size;
  p.eps = eps;
  p.head_eps = head_eps;
  p.scale = scale;
  const c10::cuda::CUDAGuard guard(x.device());
  check_launch(sluice::persistent_decoder(p, x.scalar_type() == at::kBFloat16,
                                          c10::cuda::getCurrentCUDAStream()));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(sluice_cuda, m) {
  m.def(
      "persistent_decoder(Tensor(a!) out, Tensor x, Tensor layers, Tensor caches, Tensor cos_sin, "
      "Tensor positions, Tensor slots, Tensor block_table, Tensor seq_lens, Tensor? taps, "
      "int tap_stride, Tensor(b!) counts, "
      "Tensor(c!) residual, Tensor(d!) exchange, "
      "int intermediate, int q_heads, int kv_heads, int head_dim, int block_size, float eps, "
      "float head_eps, float scale) -> ()");
  m.def("persistent_ctas() -> int", [] { return int64_t{sluice::persistent_ctas()}; });
}

TORCH_LIBRARY_IMPL(sluice_cuda, CUDA, m) { m.impl("persistent_decoder", &persistent_decoder); }
