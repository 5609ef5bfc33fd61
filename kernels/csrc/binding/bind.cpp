// Registers the CUDA kernels with torch, those for attention excepted (bind_attention.cpp).

#include "binding/bind.h"
#include "binding/bind_layer.h"
#include "inputs/step_inputs.cuh"
#include "norm_rope/layer_ops.cuh"
#include "sampling/logprobs.cuh"
#include "sampling/penalties.cuh"
#include "sampling/sampling.cuh"

namespace {

using at::Tensor;
using sluice::check;
using sluice::check_int32;
using sluice::dtype_of;

void check_like(const Tensor& t, const Tensor& model, const char* name) {
  TORCH_CHECK(t.is_cuda() && t.scalar_type() == model.scalar_type(), name,
              " must be a CUDA tensor of dtype ", model.scalar_type());
}

// Whether weights are float32 where `x` is not; else they are of its type.
bool is_wide(const Tensor& weight, const Tensor& x, const char* name) {
  TORCH_CHECK(weight.is_contiguous(), name, " must be contiguous");
  const bool wide = weight.scalar_type() == at::kFloat && x.scalar_type() != at::kFloat;
  if (!wide) check_like(weight, x, name);
  return wide;
}

void multiply_gated(Tensor out, const Tensor& x, sluice::Activation activation) {
  const auto dtype = dtype_of(x, "x");
  check_like(out, x, "out");
  TORCH_CHECK(x.dim() == 2 && x.is_contiguous() && out.is_contiguous() && out.dim() == 2 &&
                  out.size(0) == x.size(0) && out.size(1) * 2 == x.size(1),
              "x must be contiguous [rows, 2 * width] and out contiguous [rows, width]");
  TORCH_CHECK(out.size(1) * out.element_size() % 16 == 0, "width must be a multiple of 16 bytes");
  const c10::cuda::CUDAGuard guard(x.device());
  check(sluice::gated_mul(out.data_ptr(), x.data_ptr(), out.size(0), out.size(1), activation,
                          dtype, c10::cuda::getCurrentCUDAStream()),
        "gated_mul");
}

}  // namespace

namespace sluice::bindings {

void rms_norm(Tensor out, const Tensor& x, const std::optional<Tensor>& residual,
              const Tensor& weight, double eps, const std::optional<Tensor>& inner) {
  const auto dtype = dtype_of(x, "x");
  const int64_t width = weight.numel();
  TORCH_CHECK(x.dim() == 2 && x.size(1) == width && x.stride(1) == 1,
              "x must be [rows, ", width, "] with contiguous rows");
  TORCH_CHECK(out.sizes() == x.sizes() && out.is_contiguous(), "out must be contiguous, like x");
  TORCH_CHECK(!residual || (residual->sizes() == x.sizes() && residual->is_contiguous()),
              "residual must be contiguous, like x");
  check_like(out, x, "out");
  if (residual) check_like(*residual, x, "residual");
  const bool wide = is_wide(weight, x, "weight");
  TORCH_CHECK(!inner || (inner->numel() == width && is_wide(*inner, x, "inner") == wide),
              "inner must be like weight");
  const int64_t bytes = width * x.element_size();
  TORCH_CHECK(bytes % 16 == 0 && bytes <= 65536 && x.stride(0) * x.element_size() % 16 == 0,
              "rows must be multiples of 16 bytes and at most 64 KiB, got ", bytes);
  sluice::RmsNorm p = {};
  p.out = out.data_ptr();
  p.x = x.data_ptr();
  p.residual = residual ? residual->data_ptr() : nullptr;
  p.weight = weight.data_ptr();
  p.inner = inner ? inner->data_ptr() : nullptr;
  p.x_stride = x.stride(0);
  p.rows = x.size(0);
  p.width = width;
  p.eps = eps;
  p.wide = wide;
  const c10::cuda::CUDAGuard guard(x.device());
  check(sluice::rms_norm(p, dtype, c10::cuda::getCurrentCUDAStream()), "rms_norm");
}

void silu_mul(Tensor out, const Tensor& x) {
  multiply_gated(out, x, sluice::Activation::kSilu);
}

void rope_and_cache(Tensor q, const Tensor& k, const Tensor& v, Tensor k_cache, Tensor v_cache,
                    const Tensor& cos_sin, const Tensor& positions, const Tensor& slots,
                    const std::optional<Tensor>& q_norm, const std::optional<Tensor>& k_norm,
                    double eps, const std::optional<Tensor>& k_scale,
                    const std::optional<Tensor>& v_scale) {
  const auto dtype = dtype_of(q, "q");
  const int64_t tokens = q.size(0), head_dim = q.size(2);
  for (const Tensor& t : {k, v}) check_like(t, q, "k and v");
  TORCH_CHECK(q.dim() == 3 && k.dim() == 3 && k.sizes() == v.sizes() && k.size(0) == tokens &&
                  k.size(2) == head_dim && q.stride(1) == head_dim && k.stride(1) == head_dim &&
                  v.stride(1) == head_dim && q.stride(0) == k.stride(0) &&
                  q.stride(0) == v.stride(0),
              "q, k, v must be [tokens, heads, head_dim] views of one fused projection");
  TORCH_CHECK(k_cache.dim() == 4 && k_cache.is_contiguous() && v_cache.is_contiguous() &&
                  k_cache.sizes() == v_cache.sizes() && k_cache.size(2) == k.size(1) &&
                  k_cache.size(3) == head_dim,
              "caches must be contiguous [blocks, block_size, kv_heads, head_dim]");
  const bool fp8 = sluice::check_fp8(k_cache, v_cache, k_scale, v_scale);
  if (!fp8) {
    for (const Tensor& t : {k_cache, v_cache}) check_like(t, q, "the caches");
  }
  TORCH_CHECK(cos_sin.scalar_type() == at::kFloat && cos_sin.is_contiguous() &&
                  cos_sin.dim() == 2 && cos_sin.size(1) <= head_dim && cos_sin.size(1) % 2 == 0,
              "cos_sin must be contiguous float32 [max_positions, rotary_dim]");
  for (const Tensor& t : {positions, slots}) {
    TORCH_CHECK(t.scalar_type() == at::kLong && t.is_contiguous() && t.numel() == tokens,
                "positions and slots must be contiguous int64 [", tokens, "]");
  }
  TORCH_CHECK(head_dim * q.element_size() % 16 == 0 && q.stride(0) * q.element_size() % 16 == 0,
              "heads must be multiples of 16 bytes");
  for (const auto* norm : {&q_norm, &k_norm}) {
    TORCH_CHECK(!*norm || (*norm)->numel() == head_dim, "norm weights must have head_dim elements");
  }
  TORCH_CHECK(q_norm.has_value() == k_norm.has_value(), "q_norm and k_norm go together");
  const bool wide = q_norm && is_wide(*q_norm, q, "q_norm");
  TORCH_CHECK(!k_norm || is_wide(*k_norm, q, "k_norm") == wide, "k_norm must be like q_norm");
  sluice::RopeParams p = {};
  p.q = q.data_ptr();
  p.k = k.data_ptr();
  p.v = v.data_ptr();
  p.k_cache = k_cache.data_ptr();
  p.v_cache = v_cache.data_ptr();
  p.cos_sin = cos_sin.data_ptr<float>();
  p.positions = positions.data_ptr<int64_t>();
  p.slots = slots.data_ptr<int64_t>();
  p.q_norm = q_norm ? q_norm->data_ptr() : nullptr;
  p.k_norm = k_norm ? k_norm->data_ptr() : nullptr;
  p.wide_norms = wide;
  p.row_stride = q.stride(0);
  p.tokens = tokens;
  p.q_heads = q.size(1);
  p.kv_heads = k.size(1);
  p.head_dim = head_dim;
  p.rotary_dim = cos_sin.size(1);
  p.eps = eps;
  if (fp8) {
    p.k_scale = k_scale->data_ptr<float>();
    p.v_scale = v_scale->data_ptr<float>();
  }
  const c10::cuda::CUDAGuard guard(q.device());
  check(sluice::rope_and_cache(p, dtype, c10::cuda::getCurrentCUDAStream()), "rope_and_cache");
}

}  // namespace sluice::bindings

namespace {

void gelu_tanh_mul(Tensor out, const Tensor& x) {
  multiply_gated(out, x, sluice::Activation::kGeluTanh);
}

void check_int64(const Tensor& t, int64_t at_least, const char* name) {
  TORCH_CHECK(t.is_cuda() && t.scalar_type() == at::kLong && t.is_contiguous() &&
                  t.numel() >= at_least,
              name, " must be a contiguous int64 CUDA tensor of at least ", at_least, " elements");
}

void step_inputs(const Tensor& tokens, const Tensor& block_table, const Tensor& rows,
                 const Tensor& computed, const Tensor& cu_queries, Tensor token_ids,
                 Tensor positions, Tensor slots, Tensor seq_lens, Tensor batch_table,
                 int64_t block_size, const std::optional<Tensor>& sent_rows) {
  const int64_t batch = rows.numel(), num_tokens = token_ids.numel();
  check_int64(tokens, 0, "tokens");
  check_int64(token_ids, num_tokens, "token_ids");
  check_int64(positions, num_tokens, "positions");
  check_int64(slots, num_tokens, "slots");
  for (const Tensor& t : {block_table, cu_queries, seq_lens, batch_table}) {
    check_int32(t, "tables, cu_queries and seq_lens");
  }
  for (const Tensor& t : {rows, computed}) {
    TORCH_CHECK(t.scalar_type() == at::kInt && t.is_contiguous() && t.is_cuda() == rows.is_cuda(),
                "rows and computed must be contiguous int32, both on the GPU or both not");
  }
  if (sent_rows) {
    check_int32(*sent_rows, "sent_rows");
    TORCH_CHECK(sent_rows->numel() >= batch, "sent_rows must match the batch of ", batch);
  }
  TORCH_CHECK(tokens.dim() == 2 && block_table.dim() == 2 && batch_table.dim() == 2 &&
                  batch_table.size(0) >= batch && batch_table.size(1) == block_table.size(1),
              "batch_table must be [batch, max_blocks] like block_table");
  TORCH_CHECK(computed.numel() >= batch && cu_queries.numel() >= batch + 1 &&
                  seq_lens.numel() >= batch,
              "computed, cu_queries and seq_lens must match the batch of ", batch);
  sluice::StepInputs s = {};
  s.tokens = tokens.data_ptr<int64_t>();
  s.block_table = block_table.data_ptr<int>();
  s.rows = rows.data_ptr<int>();
  s.computed = computed.data_ptr<int>();
  s.on_host = !rows.is_cuda();
  s.sent_rows = sent_rows ? sent_rows->data_ptr<int>() : nullptr;
  s.cu_queries = cu_queries.data_ptr<int>();
  s.token_ids = token_ids.data_ptr<int64_t>();
  s.positions = positions.data_ptr<int64_t>();
  s.slots = slots.data_ptr<int64_t>();
  s.seq_lens = seq_lens.data_ptr<int>();
  s.batch_table = batch_table.data_ptr<int>();
  s.tokens_stride = tokens.size(1);
  s.table_stride = block_table.size(1);
  s.block_size = block_size;
  s.batch = batch;
  const c10::cuda::CUDAGuard guard(tokens.device());
  check(sluice::step_inputs(s, c10::cuda::getCurrentCUDAStream()), "step_inputs");
}

// Where the device writes what the host reads.
int64_t* mapped(const Tensor& host, int64_t at_least) {
  TORCH_CHECK(host.device().is_cpu() && host.scalar_type() == at::kLong && host.is_contiguous() &&
                  host.numel() >= at_least,
              "host must be pinned int64 memory of at least ", at_least, " elements");
  void* address = nullptr;
  check(cudaHostGetDevicePointer(&address, host.data_ptr(), 0), "host must be pinned memory");
  return static_cast<int64_t*>(address);
}

void sample(Tensor out, const Tensor& logits, const Tensor& table, const Tensor& rows,
            const Tensor& positions, const std::optional<Tensor>& tokens,
            const std::optional<Tensor>& host) {
  const auto dtype = dtype_of(logits, "logits");
  const int64_t num_rows = logits.size(0);
  TORCH_CHECK(logits.is_cuda() && logits.dim() == 2 && logits.stride(1) == 1,
              "logits must be a CUDA matrix with contiguous rows");
  TORCH_CHECK(table.is_cuda() && table.scalar_type() == at::kByte && table.is_contiguous() &&
                  table.dim() == 2 && table.size(1) == sizeof(sluice::SamplingRow),
              "table must be uint8 [max_rows, ", sizeof(sluice::SamplingRow), "]");
  check_int32(rows, "rows");
  check_int32(positions, "positions");
  check_int64(out, num_rows, "out");
  TORCH_CHECK(rows.numel() >= num_rows && positions.numel() >= num_rows,
              "rows and positions must match the logits");
  if (tokens) check_int64(*tokens, 0, "tokens");
  sluice::Sampling s = {};
  s.logits = logits.data_ptr();
  s.table = static_cast<const sluice::SamplingRow*>(table.data_ptr());
  s.rows = rows.data_ptr<int>();
  s.positions = positions.data_ptr<int>();
  s.out = out.data_ptr<int64_t>();
  s.host_out = host && num_rows > 0 ? mapped(*host, num_rows) : nullptr;
  s.tokens = tokens ? tokens->data_ptr<int64_t>() : nullptr;
  s.logits_stride = logits.stride(0);
  s.tokens_stride = tokens ? tokens->size(1) : 0;
  s.num_rows = num_rows;
  s.vocab = logits.size(1);
  const c10::cuda::CUDAGuard guard(logits.device());
  check(sluice::sample(s, dtype, c10::cuda::getCurrentCUDAStream()), "sample");
}

void apply_token_bitmask(Tensor logits, const Tensor& bitmask, const Tensor& rows) {
  const auto dtype = dtype_of(logits, "logits");
  TORCH_CHECK(logits.is_cuda() && logits.dim() == 2 && logits.stride(1) == 1,
              "logits must be a CUDA matrix with contiguous rows");
  check_int32(bitmask, "bitmask");
  TORCH_CHECK(bitmask.dim() == 2 && bitmask.size(1) == (logits.size(1) + 31) / 32,
              "bitmask must be [num_masks, ", (logits.size(1) + 31) / 32, "]");
  check_int64(rows, bitmask.size(0), "rows");
  sluice::TokenBitmask m = {};
  m.logits = logits.data_ptr();
  m.bitmask = bitmask.data_ptr<int>();
  m.rows = rows.data_ptr<int64_t>();
  m.logits_stride = logits.stride(0);
  m.num_masks = bitmask.size(0);
  m.words = bitmask.size(1);
  m.vocab = logits.size(1);
  const c10::cuda::CUDAGuard guard(logits.device());
  check(sluice::apply_token_bitmask(m, dtype, c10::cuda::getCurrentCUDAStream()),
        "apply_token_bitmask");
}

void token_logprobs(Tensor logprobs, Tensor ranks, Tensor top_ids, Tensor top_logprobs,
                    const Tensor& logits, const Tensor& token_ids) {
  const auto dtype = dtype_of(logits, "logits");
  TORCH_CHECK(logits.is_cuda() && logits.dim() == 2 && logits.stride(1) == 1,
              "logits must be a CUDA matrix with contiguous rows");
  const int64_t num_rows = logits.size(0), num_top = top_ids.size(1);
  TORCH_CHECK(num_top <= sluice::kMaxTopLogprobs && num_top <= logits.size(1), "at most ",
              sluice::kMaxTopLogprobs, " and the vocabulary can be reported, got ", num_top);
  check_int64(token_ids, num_rows, "token_ids");
  check_int64(ranks, num_rows, "ranks");
  check_int64(top_ids, num_rows * num_top, "top_ids");
  for (const Tensor& t : {logprobs, top_logprobs}) {
    TORCH_CHECK(t.is_cuda() && t.scalar_type() == at::kFloat && t.is_contiguous(),
                "log-probabilities must be contiguous float32 CUDA tensors");
  }
  TORCH_CHECK(logprobs.numel() >= num_rows && top_logprobs.numel() >= num_rows * num_top,
              "log-probabilities must match the logits");
  sluice::TokenLogprobs w = {};
  w.logits = logits.data_ptr();
  w.token_ids = token_ids.data_ptr<int64_t>();
  w.logprobs = logprobs.data_ptr<float>();
  w.ranks = ranks.data_ptr<int64_t>();
  w.top_ids = top_ids.data_ptr<int64_t>();
  w.top_logprobs = top_logprobs.data_ptr<float>();
  w.logits_stride = logits.stride(0);
  w.num_rows = num_rows;
  w.vocab = logits.size(1);
  w.num_top = num_top;
  const c10::cuda::CUDAGuard guard(logits.device());
  check(sluice::token_logprobs(w, dtype, c10::cuda::getCurrentCUDAStream()), "token_logprobs");
}

void apply_penalties(Tensor logits, const Tensor& tokens, const Tensor& where,
                     const Tensor& strengths, Tensor counts) {
  TORCH_CHECK(logits.is_cuda() && logits.dim() == 2 && logits.stride(1) == 1 &&
                  logits.scalar_type() == at::kFloat,
              "logits must be a float32 CUDA matrix with contiguous rows");
  TORCH_CHECK(where.dim() == 2 && where.size(0) == 4, "where must be [4, num_rows]");
  const int64_t num_rows = where.size(1);
  check_int64(tokens, 0, "tokens");
  check_int64(where, 4 * num_rows, "where");
  TORCH_CHECK(tokens.dim() == 2, "tokens must be a matrix");
  TORCH_CHECK(strengths.is_cuda() && strengths.scalar_type() == at::kFloat &&
                  strengths.is_contiguous() && strengths.numel() == 3 * num_rows,
              "strengths must be float32 [3, ", num_rows, "]");
  check_int32(counts, "counts");
  TORCH_CHECK(counts.dim() == 2 && counts.size(1) == logits.size(1), "counts must be [*, ",
              logits.size(1), "]");
  sluice::Penalties p = {};
  p.logits = logits.data_ptr<float>();
  p.tokens = tokens.data_ptr<int64_t>();
  p.where = where.data_ptr<int64_t>();
  p.strengths = strengths.data_ptr<float>();
  p.counts = reinterpret_cast<uint32_t*>(counts.data_ptr<int>());
  p.logits_stride = logits.stride(0);
  p.tokens_stride = tokens.size(1);
  p.num_rows = num_rows;
  p.vocab = logits.size(1);
  const c10::cuda::CUDAGuard guard(logits.device());
  check(sluice::apply_penalties(p, counts.size(0), c10::cuda::getCurrentCUDAStream()),
        "apply_penalties");
}

}  // namespace

TORCH_LIBRARY(sluice_cuda, m) {
  m.def(
      "rms_norm(Tensor(a!) out, Tensor x, Tensor(b!)? residual, Tensor weight, float eps, "
      "Tensor? inner=None) -> ()");
  m.def("silu_mul(Tensor(a!) out, Tensor x) -> ()");
  m.def("gelu_tanh_mul(Tensor(a!) out, Tensor x) -> ()");
  m.def(
      "rope_and_cache(Tensor(a!) q, Tensor k, Tensor v, Tensor(b!) k_cache, Tensor(c!) v_cache, "
      "Tensor cos_sin, Tensor positions, Tensor slots, Tensor? q_norm, Tensor? k_norm, float eps, "
      "Tensor? k_scale=None, Tensor? v_scale=None) -> ()");
  m.def(
      "step_inputs(Tensor tokens, Tensor block_table, Tensor rows, Tensor computed, "
      "Tensor cu_queries, Tensor(a!) token_ids, Tensor(b!) positions, Tensor(c!) slots, "
      "Tensor(d!) seq_lens, Tensor(e!) batch_table, int block_size, Tensor(f!)? sent_rows) -> ()");
  m.def(
      "sample(Tensor(a!) out, Tensor logits, Tensor table, Tensor rows, Tensor positions, "
      "Tensor(b!)? tokens, Tensor(c!)? host) -> ()");
  m.def("apply_token_bitmask(Tensor(a!) logits, Tensor bitmask, Tensor rows) -> ()");
  m.def(
      "token_logprobs(Tensor(a!) logprobs, Tensor(b!) ranks, Tensor(c!) top_ids, "
      "Tensor(d!) top_logprobs, Tensor logits, Tensor token_ids) -> ()");
  m.def(
      "apply_penalties(Tensor(a!) logits, Tensor tokens, Tensor where, Tensor strengths, "
      "Tensor(b!) counts) -> ()");
}

TORCH_LIBRARY_IMPL(sluice_cuda, CUDA, m) {
  m.impl("rms_norm", &sluice::bindings::rms_norm);
  m.impl("silu_mul", &sluice::bindings::silu_mul);
  m.impl("gelu_tanh_mul", &gelu_tanh_mul);
  m.impl("rope_and_cache", &sluice::bindings::rope_and_cache);
  m.impl("step_inputs", &step_inputs);
  m.impl("sample", &sample);
  m.impl("apply_token_bitmask", &apply_token_bitmask);
  m.impl("apply_penalties", &apply_penalties);
  m.impl("token_logprobs", &token_logprobs);
}
