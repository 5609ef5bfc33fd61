// Registers with torch what works on whole blocks of the KV cache, and what fills a latent one.

#include "binding/bind.h"
#include "cache/cache_blocks.cuh"
#include "cache/latent_cache.cuh"

namespace {

using at::Tensor;
using sluice::check;
using sluice::check_int32;

void dequantize_blocks(Tensor k_out, Tensor v_out, const Tensor& k_cache, const Tensor& v_cache,
                       const Tensor& k_scale, const Tensor& v_scale, const Tensor& blocks) {
  sluice::check_fp8(k_cache, v_cache, k_scale, v_scale);
  TORCH_CHECK(k_out.scalar_type() == at::kBFloat16 || k_out.scalar_type() == at::kHalf,
              "k_out must be bfloat16 or float16");
  for (const Tensor& t : {k_cache, v_cache, k_out, v_out}) {
    TORCH_CHECK(t.is_cuda() && t.dim() == 4 && t.is_contiguous() &&
                    t.sizes().slice(1) == k_cache.sizes().slice(1),
                "caches and outputs must be contiguous [blocks, block_size, kv_heads, head_dim]");
  }
  check_int32(blocks, "blocks");
  const int64_t num_blocks = blocks.numel();
  TORCH_CHECK(v_out.scalar_type() == k_out.scalar_type() && k_out.size(0) >= num_blocks &&
                  v_out.size(0) >= num_blocks,
              "k_out and v_out must have the same dtype and room for ", num_blocks, " blocks");
  TORCH_CHECK(k_cache.size(3) % 16 == 0, "head_dim must be a multiple of 16");
  sluice::Dequantization d = {};
  d.k_out = k_out.data_ptr();
  d.v_out = v_out.data_ptr();
  d.k_cache = k_cache.data_ptr();
  d.v_cache = v_cache.data_ptr();
  d.k_scale = k_scale.data_ptr<float>();
  d.v_scale = v_scale.data_ptr<float>();
  d.blocks = blocks.data_ptr<int>();
  d.num_blocks = num_blocks;
  d.block_size = k_cache.size(1);
  d.num_kv_heads = k_cache.size(2);
  d.head_dim = k_cache.size(3);
  const c10::cuda::CUDAGuard guard(k_cache.device());
  check(sluice::dequantize_blocks(d, k_out.scalar_type() == at::kBFloat16,
                                  c10::cuda::getCurrentCUDAStream()),
        "dequantize_blocks");
}

void copy_blocks(const Tensor& tensors, const Tensor& rows, const Tensor& blocks, bool out,
                 int64_t max_ctas) {
  for (const Tensor& t : {tensors, rows}) {
    TORCH_CHECK(t.is_cuda() && t.scalar_type() == at::kLong && t.is_contiguous(),
                "tensors and rows must be contiguous int64 CUDA tensors");
  }
  check_int32(blocks, "blocks");
  TORCH_CHECK(tensors.dim() == 2 && tensors.size(1) == 3, "tensors must be [num_tensors, 3]");
  TORCH_CHECK(rows.numel() == blocks.numel(), "rows and blocks must be as many");
  TORCH_CHECK(max_ctas >= 1, "max_ctas must be at least 1, got ", max_ctas);
  sluice::BlockCopies c = {};
  c.tensors = tensors.data_ptr<int64_t>();
  c.rows = rows.data_ptr<int64_t>();
  c.blocks = blocks.data_ptr<int>();
  c.num_tensors = tensors.size(0);
  c.num_copies = blocks.numel();
  c.out = out;
  const c10::cuda::CUDAGuard guard(blocks.device());
  check(sluice::copy_blocks(c, max_ctas, c10::cuda::getCurrentCUDAStream()), "copy_blocks");
}

void copy_leading_slots(const Tensor& tensors, const Tensor& copies, int64_t block_size) {
  TORCH_CHECK(tensors.is_cuda() && tensors.scalar_type() == at::kLong && tensors.is_contiguous() &&
                  tensors.dim() == 2 && tensors.size(1) == 2,
              "tensors must be contiguous int64 [num_tensors, 2] on a GPU");
  check_int32(copies, "copies");
  TORCH_CHECK(copies.dim() == 2 && copies.size(1) == 3, "copies must be [num_copies, 3]");
  TORCH_CHECK(copies.size(0) <= 65535, "at most 65535 copies, got ", copies.size(0));
  TORCH_CHECK(block_size >= 1, "block_size must be at least 1, got ", block_size);
  sluice::SlotCopies c = {};
  c.tensors = tensors.data_ptr<int64_t>();
  c.copies = copies.data_ptr<int>();
  c.num_tensors = tensors.size(0);
  c.num_copies = copies.size(0);
  c.block_size = block_size;
  const c10::cuda::CUDAGuard guard(copies.device());
  check(sluice::copy_leading_slots(c, c10::cuda::getCurrentCUDAStream()), "copy_leading_slots");
}

void store_latents(Tensor q, const Tensor& q_turned, const Tensor& kv, const Tensor& norm,
                   Tensor cache, const Tensor& cos_sin, const Tensor& positions,
                   const Tensor& slots, double eps, bool interleaved,
                   const std::optional<Tensor>& scale) {
  const auto dtype = sluice::dtype_of(q, "q");
  for (const Tensor& t : {q, q_turned, kv, norm}) {
    TORCH_CHECK(t.is_cuda() && t.scalar_type() == q.scalar_type(),
                "q, q_turned, kv and norm must be CUDA tensors of one type");
  }
  TORCH_CHECK(q.dim() == 3 && q.is_contiguous(), "q must be contiguous [tokens, heads, width]");
  const int64_t tokens = q.size(0), heads = q.size(1), width = q.size(2);
  const int64_t rank = norm.numel(), rotary = width - rank;
  TORCH_CHECK(rotary > 0 && rotary % 2 == 0, "q must be wider than norm, by an even number");
  TORCH_CHECK(q_turned.dim() == 3 && q_turned.size(0) == tokens && q_turned.size(1) == heads &&
                  q_turned.size(2) == rotary && q_turned.stride(2) == 1,
              "q_turned must be [", tokens, ", ", heads, ", ", rotary, "]");
  TORCH_CHECK(kv.dim() == 2 && kv.is_contiguous() && kv.size(0) == tokens && kv.size(1) == width &&
                  norm.is_contiguous(),
              "kv must be contiguous [", tokens, ", ", width, "]");
  TORCH_CHECK(cache.dim() == 4 && cache.is_contiguous() && cache.size(2) == 1 &&
                  cache.size(3) == width,
              "cache must be contiguous [blocks, block_size, 1, ", width, "]");
  if (!sluice::check_fp8(cache, cache, scale, scale)) {
    TORCH_CHECK(cache.scalar_type() == q.scalar_type(), "cache must be of q's type");
  }
  TORCH_CHECK(cos_sin.is_cuda() && cos_sin.scalar_type() == at::kFloat &&
                  cos_sin.is_contiguous() && cos_sin.dim() == 2 && cos_sin.size(1) == rotary,
              "cos_sin must be contiguous float32 [max_positions, ", rotary, "]");
  for (const Tensor& t : {positions, slots}) {
    TORCH_CHECK(t.is_cuda() && t.scalar_type() == at::kLong && t.is_contiguous() &&
                    t.numel() == tokens,
                "positions and slots must be contiguous int64 [", tokens, "]");
  }
  sluice::StoreLatents p = {};
  p.q = q.data_ptr();
  p.q_turned = q_turned.data_ptr();
  p.kv = kv.data_ptr();
  p.norm = norm.data_ptr();
  p.cache = cache.data_ptr();
  p.cos_sin = cos_sin.data_ptr<float>();
  p.positions = positions.data_ptr<int64_t>();
  p.slots = slots.data_ptr<int64_t>();
  p.scale = scale ? scale->data_ptr<float>() : nullptr;
  p.q_token_stride = q_turned.stride(0);
  p.q_head_stride = q_turned.stride(1);
  p.tokens = tokens;
  p.heads = heads;
  p.rank = rank;
  p.rotary_dim = rotary;
  p.eps = eps;
  p.interleaved = interleaved;
  const c10::cuda::CUDAGuard guard(q.device());
  check(sluice::store_latents(p, dtype, c10::cuda::getCurrentCUDAStream()), "store_latents");
}

int64_t mapped_address(const Tensor& host) {
  TORCH_CHECK(host.device().is_cpu() && host.is_contiguous(),
              "host must be contiguous host memory");
  void* address = nullptr;
  check(cudaHostGetDevicePointer(&address, host.data_ptr(), 0), "mapped_address");
  return reinterpret_cast<int64_t>(address);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(sluice_cuda, m) {
  m.def(
      "dequantize_blocks(Tensor(a!) k_out, Tensor(b!) v_out, Tensor k_cache, Tensor v_cache, "
      "Tensor k_scale, Tensor v_scale, Tensor blocks) -> ()");
  m.def(
      "store_latents(Tensor(a!) q, Tensor q_turned, Tensor kv, Tensor norm, Tensor(b!) cache, "
      "Tensor cos_sin, Tensor positions, Tensor slots, float eps, bool interleaved, "
      "Tensor? scale) -> ()");
  m.def("copy_blocks(Tensor tensors, Tensor rows, Tensor blocks, bool out, int max_ctas) -> ()");
  m.def("copy_leading_slots(Tensor tensors, Tensor copies, int block_size) -> ()");
  m.def("mapped_address(Tensor host) -> int", &mapped_address);
}

TORCH_LIBRARY_IMPL(sluice_cuda, CUDA, m) {
  m.impl("dequantize_blocks", &dequantize_blocks);
  m.impl("copy_blocks", &copy_blocks);
  m.impl("copy_leading_slots", &copy_leading_slots);
  m.impl("store_latents", &store_latents);
}
