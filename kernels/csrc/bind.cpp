// Registers the CUDA kernels with torch. The only file that includes torch's headers; everything
// else in this folder takes raw pointers. Arguments are checked here, once.

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "paged_decode.cuh"

namespace {

using at::Tensor;

void check(cudaError_t error, const char* what) {
  TORCH_CHECK(error == cudaSuccess, what, ": ", cudaGetErrorString(error));
}

void check_int32(const Tensor& t, const char* name) {
  TORCH_CHECK(t.is_cuda() && t.scalar_type() == at::kInt && t.is_contiguous(), name,
              " must be a contiguous int32 CUDA tensor");
}

// Into how many work items the query group of a KV head is cut so that its rows fit one pass.
struct Grouping {
  int64_t parts, group;
};

Grouping grouping(int64_t q_heads, int64_t kv_heads, int64_t max_queries, int64_t head_dim) {
  const int64_t max_rows = head_dim == 256 ? 16 : sluice::kMaxDecodeRows;
  TORCH_CHECK(q_heads % kv_heads == 0, "the query heads must be a multiple of the KV heads");
  TORCH_CHECK(max_queries >= 1 && max_queries <= max_rows, "max_queries must be in [1, ", max_rows,
              "], got ", max_queries);
  const int64_t whole = q_heads / kv_heads;
  int64_t parts = 1;
  while (whole % parts != 0 || whole / parts * max_queries > max_rows) ++parts;
  return {parts, whole / parts};
}

// The schedule tensor: row 0 holds the line, row 1 + i the start of CTA i's span.
static_assert(sizeof(sluice::DecodeCursor) == 8 * sizeof(int));

void decode_schedule(Tensor schedule, Tensor tile_ends, const Tensor& seq_lens,
                     const Tensor& cu_queries, int64_t q_heads, int64_t kv_heads, int64_t head_dim,
                     int64_t max_queries, int64_t min_span, int64_t window) {
  check_int32(schedule, "schedule");
  check_int32(tile_ends, "tile_ends");
  check_int32(seq_lens, "seq_lens");
  check_int32(cu_queries, "cu_queries");
  const int64_t batch = seq_lens.numel();
  TORCH_CHECK(schedule.dim() == 2 && schedule.size(1) == 8, "schedule must be [1 + num_ctas, 8]");
  TORCH_CHECK(batch >= 1 && tile_ends.numel() >= batch && cu_queries.numel() == batch + 1,
              "tile_ends needs ", batch, " and cu_queries ", batch + 1, " elements");
  sluice::DecodeSchedule s = {};
  s.line = reinterpret_cast<sluice::DecodeLine*>(schedule.data_ptr<int>());
  s.starts = reinterpret_cast<sluice::DecodeCursor*>(schedule.data_ptr<int>()) + 1;
  s.tile_ends = tile_ends.data_ptr<int>();
  s.seq_lens = seq_lens.data_ptr<int>();
  s.cu_queries = cu_queries.data_ptr<int>();
  s.batch = batch;
  s.num_heads = kv_heads * grouping(q_heads, kv_heads, max_queries, head_dim).parts;
  s.min_span = min_span;
  s.window = window;
  const c10::cuda::CUDAGuard guard(seq_lens.device());
  check(sluice::decode_schedule(s, schedule.size(0) - 1, c10::cuda::getCurrentCUDAStream()),
        "decode_schedule");
}

void paged_decode(Tensor out, const Tensor& q, const Tensor& k_cache, const Tensor& v_cache,
                  const Tensor& block_table, const Tensor& seq_lens, const Tensor& cu_queries,
                  const Tensor& schedule, Tensor partial_out, Tensor partial_stats,
                  Tensor arrivals, const std::optional<Tensor>& alibi_slopes, int64_t max_queries,
                  int64_t window, double scale, double soft_cap) {
  TORCH_CHECK(q.dim() == 3 && q.stride(2) == 1 && q.stride(1) == q.size(2),
              "q must be [tokens, heads, head_dim] with contiguous heads");
  TORCH_CHECK(out.sizes() == q.sizes() && out.scalar_type() == q.scalar_type() &&
                  out.stride(2) == 1 && out.stride(1) == out.size(2),
              "out must have q's shape and dtype and contiguous heads");
  TORCH_CHECK(q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf,
              "q must be bfloat16 or float16");
  TORCH_CHECK(k_cache.dim() == 4 && k_cache.is_contiguous() && v_cache.is_contiguous() &&
                  k_cache.sizes() == v_cache.sizes() && k_cache.scalar_type() == q.scalar_type() &&
                  v_cache.scalar_type() == q.scalar_type() && k_cache.size(3) == q.size(2),
              "caches must be contiguous [blocks, block_size, kv_heads, head_dim] of q's dtype");
  TORCH_CHECK(k_cache.size(1) % 16 == 0, "block_size must be a multiple of 16");
  TORCH_CHECK(block_table.dim() == 2 && block_table.scalar_type() == at::kInt &&
                  block_table.stride(1) == 1,
              "block_table must be an int32 matrix with contiguous rows");
  check_int32(seq_lens, "seq_lens");
  check_int32(cu_queries, "cu_queries");
  check_int32(schedule, "schedule");
  check_int32(arrivals, "arrivals");

  const int64_t head_dim = q.size(2), kv_heads = k_cache.size(2), batch = seq_lens.numel();
  TORCH_CHECK(block_table.size(0) >= batch && cu_queries.numel() == batch + 1,
              "block_table and cu_queries must match the batch of ", batch);
  const auto [parts, group] = grouping(q.size(1), kv_heads, max_queries, head_dim);
  TORCH_CHECK(arrivals.numel() >= batch * kv_heads * parts, "arrivals needs ",
              batch * kv_heads * parts, " elements");
  const int64_t num_ctas = partial_out.size(0);
  TORCH_CHECK(schedule.dim() == 2 && schedule.size(0) == num_ctas + 1 && schedule.size(1) == 8,
              "schedule must be [1 + num_ctas, 8]");
  TORCH_CHECK(partial_out.scalar_type() == at::kFloat && partial_out.is_contiguous() &&
                  partial_out.numel() >= num_ctas * 2 * sluice::kMaxDecodeRows * head_dim,
              "partial_out must be float32 [num_ctas, 2, ", sluice::kMaxDecodeRows, ", head_dim]");
  TORCH_CHECK(partial_stats.scalar_type() == at::kFloat && partial_stats.is_contiguous() &&
                  partial_stats.numel() >= num_ctas * 2 * sluice::kMaxDecodeRows * 2,
              "partial_stats must be float32 [num_ctas, 2, ", sluice::kMaxDecodeRows, ", 2]");
  TORCH_CHECK(!alibi_slopes || (alibi_slopes->scalar_type() == at::kFloat &&
                                alibi_slopes->numel() == q.size(1)),
              "alibi_slopes must be float32 [num_q_heads]");

  sluice::DecodeParams p = {};
  p.out = out.data_ptr();
  p.q = q.data_ptr();
  p.k_cache = k_cache.data_ptr();
  p.v_cache = v_cache.data_ptr();
  p.block_table = block_table.data_ptr<int>();
  p.seq_lens = seq_lens.data_ptr<int>();
  p.cu_queries = cu_queries.data_ptr<int>();
  p.line = reinterpret_cast<const sluice::DecodeLine*>(schedule.data_ptr<int>());
  p.starts = reinterpret_cast<const sluice::DecodeCursor*>(schedule.data_ptr<int>()) + 1;
  p.alibi_slopes = alibi_slopes ? alibi_slopes->data_ptr<float>() : nullptr;
  p.partial_out = partial_out.data_ptr<float>();
  p.partial_stats = reinterpret_cast<float2*>(partial_stats.data_ptr<float>());
  p.arrivals = arrivals.data_ptr<int>();
  p.q_stride = q.stride(0);
  p.out_stride = out.stride(0);
  p.block_stride = k_cache.stride(0);
  p.token_stride = k_cache.stride(1);
  p.block_table_stride = block_table.stride(0);
  p.batch = batch;
  p.num_heads = kv_heads * parts;
  p.parts = parts;
  p.group = group;
  p.block_size = k_cache.size(1);
  p.window = window;
  p.scale = scale;
  p.soft_cap = soft_cap;
  const c10::cuda::CUDAGuard guard(q.device());
  check(sluice::paged_decode(p, q.scalar_type() == at::kBFloat16, head_dim, group * max_queries,
                             num_ctas, c10::cuda::getCurrentCUDAStream()),
        "paged_decode");
}

}  // namespace

TORCH_LIBRARY(sluice_cuda, m) {
  m.def(
      "decode_schedule(Tensor(a!) schedule, Tensor(b!) tile_ends, Tensor seq_lens, "
      "Tensor cu_queries, int q_heads, int kv_heads, int head_dim, int max_queries, int min_span, "
      "int window) -> ()");
  m.def(
      "paged_decode(Tensor(a!) out, Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, "
      "Tensor seq_lens, Tensor cu_queries, Tensor schedule, Tensor(b!) partial_out, "
      "Tensor(c!) partial_stats, Tensor(d!) arrivals, Tensor? alibi_slopes, int max_queries, "
      "int window, float scale, float soft_cap) -> ()");
}

TORCH_LIBRARY_IMPL(sluice_cuda, CUDA, m) {
  m.impl("decode_schedule", &decode_schedule);
  m.impl("paged_decode", &paged_decode);
}
