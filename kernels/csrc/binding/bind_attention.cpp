// Registers the attention kernels with torch.

#include "attention/paged_decode.cuh"
#include "attention/paged_prefill.cuh"
#include "binding/bind.h"
#include "common/dependent_launch.cuh"
#include "common/device.cuh"

namespace {

using at::Tensor;
using sluice::check;
using sluice::check_int32;

// How the heads of a step are cut into work; the same for its schedule and for its launches.
struct HeadSplit {
  int64_t parts;    // items per KV head, so that the rows of one fit one pass
  int64_t group;    // query heads per item
  int64_t items;    // per sequence
  int64_t columns;  // items worked on side by side
};

HeadSplit split_heads(int64_t q_heads, int64_t kv_heads, int64_t max_queries, int64_t head_dim) {
  const int64_t max_rows = head_dim == 256 ? 16 : sluice::kMaxDecodeRows;
  TORCH_CHECK(q_heads % kv_heads == 0, "the query heads must be a multiple of the KV heads");
  TORCH_CHECK(max_queries >= 1 && max_queries <= max_rows, "max_queries must be in [1, ", max_rows,
              "], got ", max_queries);
  const int64_t whole = q_heads / kv_heads;
  int64_t parts = 1;
  while (whole % parts != 0 || whole / parts * max_queries > max_rows) ++parts;
  int64_t columns = 8;
  while (kv_heads * parts % columns != 0) --columns;
  return {parts, whole / parts, kv_heads * parts, columns};
}

// The schedule tensor: row 0 holds the line, row 1 + i the start of span i.
constexpr int64_t kStartInts = sizeof(sluice::DecodeStart) / sizeof(int);

sluice::DecodeLine* line_of(const Tensor& schedule) {
  return reinterpret_cast<sluice::DecodeLine*>(schedule.data_ptr<int>());
}

sluice::DecodeStart* starts_of(const Tensor& schedule) {
  return reinterpret_cast<sluice::DecodeStart*>(schedule.data_ptr<int>()) + 1;
}

// How many CTAs of a cluster share an item, the same for a step's schedule and for its launches,
// how many spans that leaves, and how many of them are used where they are short.
struct Clusters {
  int64_t size, spans, few_spans;
};

constexpr int kClusterSlack = 1;  // tiles: about what merging by way of memory takes

Clusters clusters_of(const HeadSplit& split, const Tensor& schedule, int64_t batch,
                     int64_t max_queries, bool wanted) {
  const int64_t ctas = schedule.size(0) - 1, spans = ctas / split.columns;
  const int64_t items = batch * (split.items / split.columns);
  if (!wanted || !sluice::device_has_dependent_launch() ||
      split.group * max_queries > sluice::kMaxClusterRows) {
    return {1, spans, spans};
  }
  // Several for each of few items, but half as many as the SMs could hold: of more, some would not
  // be resident at once, and their CTAs would wait for a whole run of others. Sixteen are on half
  // of the SMs, which pays where merging is most of the time: with many rows.
  const bool many_rows = split.group * max_queries > 8, fills = ctas >= sluice::num_sms() * 2;
  for (const int64_t size : {16, 8}) {
    const int64_t half = spans / 2 / size * size;
    if (fills && items * size <= half && (size == 8 || many_rows)) return {size, half, half};
  }
  // Of pairs all are resident. Half of them are sooner done while spans are short, if nearly each of
  // that half has an item; with many rows, where merging takes longer, if every other one has.
  const int64_t pairs = spans / 2 * 2, half = spans / 2 / 2 * 2;
  const int64_t enough = many_rows ? half / 4 : half * 3 / 8 + 1;
  if (fills && items >= enough && items * 2 <= half) return {2, pairs, half};
  if (items * 2 <= spans && spans < items * 4) return {2, pairs, pairs};  // they fill the GPU
  return {1, spans, spans};
}

void check_attention(const Tensor& out, const Tensor& q, const Tensor& k_cache,
                     const Tensor& v_cache, bool fp8 = false) {
  TORCH_CHECK(q.dim() == 3 && q.stride(2) == 1 && q.stride(1) == q.size(2),
              "q must be [tokens, heads, head_dim] with contiguous heads");
  TORCH_CHECK(out.sizes() == q.sizes() && out.scalar_type() == q.scalar_type() &&
                  out.stride(2) == 1 && out.stride(1) == out.size(2),
              "out must have q's shape and dtype and contiguous heads");
  TORCH_CHECK(q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf,
              "q must be bfloat16 or float16");
  TORCH_CHECK(k_cache.dim() == 4 && k_cache.is_contiguous() && v_cache.is_contiguous() &&
                  k_cache.sizes() == v_cache.sizes() && k_cache.size(3) == q.size(2) &&
                  (fp8 || (k_cache.scalar_type() == q.scalar_type() &&
                           v_cache.scalar_type() == q.scalar_type())),
              "caches must be contiguous [blocks, block_size, kv_heads, head_dim] of q's dtype, or "
              "float8_e4m3fn with scales");
}

void check_schedule(const Tensor& schedule) {
  check_int32(schedule, "schedule");
  TORCH_CHECK(schedule.dim() == 2 && schedule.size(0) >= 2 && schedule.size(1) == kStartInts,
              "schedule must be [1 + num_ctas, ", kStartInts, "]");
}

void check_batch(const Tensor& seq_lens, const Tensor& cu_queries, const Tensor& block_table,
                 int64_t block_size) {
  check_int32(seq_lens, "seq_lens");
  check_int32(cu_queries, "cu_queries");
  TORCH_CHECK(block_table.dim() == 2 && block_table.scalar_type() == at::kInt &&
                  block_table.stride(1) == 1,
              "block_table must be an int32 matrix with contiguous rows");
  const int64_t batch = seq_lens.numel();
  TORCH_CHECK(batch >= 1 && block_table.size(0) >= batch && cu_queries.numel() == batch + 1,
              "block_table and cu_queries must match the batch of ", batch);
  TORCH_CHECK(block_size % 16 == 0, "block_size must be a multiple of 16");
}

sluice::DecodeTable table_of(const Tensor& block_table, int64_t block_size) {
  return {block_table.data_ptr<int>(), static_cast<int>(block_table.stride(0)),
          static_cast<int>(block_size), sluice::Divisor::of(static_cast<int>(block_size / 16))};
}

const int* skipped_of(const std::optional<Tensor>& skipped, int64_t window, int64_t batch) {
  if (!skipped) return nullptr;
  check_int32(*skipped, "skipped");
  TORCH_CHECK(skipped->numel() >= batch, "skipped must match the batch of ", batch);
  TORCH_CHECK(window == 0, "keys cannot be shared under a sliding window");
  return skipped->data_ptr<int>();
}

// The partial results for shared keys, and how many rows of [num_q_heads] they hold.
int64_t check_partial(const Tensor& out, const Tensor& stats, int64_t heads, int64_t head_dim) {
  TORCH_CHECK(out.scalar_type() == at::kFloat && out.is_contiguous() && out.dim() == 3 &&
                  out.size(1) == heads && out.size(2) == head_dim &&
                  stats.scalar_type() == at::kFloat && stats.is_contiguous() &&
                  stats.numel() == out.size(0) * heads * 2,
              "shared results must be float32 [rows, ", heads, ", ", head_dim, "] and [rows, ",
              heads, ", 2]");
  return out.size(0);
}

// Heads beside the queries in their projection, not stored yet, and what to rotate them with.
void check_new(const Tensor& q, const Tensor& k_cache, const std::optional<Tensor>& heads,
               const Tensor& cos_sin) {
  TORCH_CHECK(heads && heads->dim() == 3 && heads->size(0) == q.size(0) &&
                  heads->size(1) == k_cache.size(2) && heads->size(2) == q.size(2) &&
                  heads->scalar_type() == q.scalar_type() && heads->stride(2) == 1 &&
                  heads->stride(1) == q.size(2) && heads->stride(0) == q.stride(0),
              "new_k and new_v must be [tokens, kv_heads, head_dim] beside q in one projection");
  TORCH_CHECK(q.stride(0) % 8 == 0 && reinterpret_cast<uintptr_t>(heads->data_ptr()) % 16 == 0,
              "rows of a projection must begin at a multiple of 16 bytes");
  TORCH_CHECK(cos_sin.scalar_type() == at::kFloat && cos_sin.is_contiguous() &&
                  cos_sin.dim() == 2 && cos_sin.size(1) == q.size(2),
              "cos_sin must be float32 [max_positions, head_dim]");
}

void decode_schedule(Tensor schedule, Tensor tile_ends, const Tensor& seq_lens,
                     const Tensor& cu_queries, const Tensor& block_table, int64_t block_size,
                     int64_t q_heads, int64_t kv_heads, int64_t head_dim, int64_t max_queries,
                     int64_t min_span, int64_t window, const std::optional<Tensor>& skipped,
                     bool clusters, bool wait_first, bool dirty_l2) {
  check_batch(seq_lens, cu_queries, block_table, block_size);
  check_schedule(schedule);
  check_int32(tile_ends, "tile_ends");
  const int64_t batch = seq_lens.numel();
  TORCH_CHECK(tile_ends.numel() >= batch, "tile_ends needs ", batch, " elements");
  const HeadSplit split = split_heads(q_heads, kv_heads, max_queries, head_dim);
  sluice::DecodeSchedule s = {};
  s.line = line_of(schedule);
  s.starts = starts_of(schedule);
  s.tile_ends = tile_ends.data_ptr<int>();
  s.shape = {seq_lens.data_ptr<int>(), cu_queries.data_ptr<int>(),
             static_cast<int>(split.items / split.columns), static_cast<int>(window),
             skipped_of(skipped, window, batch)};
  s.table = table_of(block_table, block_size);
  s.batch = batch;
  s.min_span = min_span;
  const c10::cuda::CUDAGuard guard(seq_lens.device());
  const Clusters shared = clusters_of(split, schedule, batch, max_queries, clusters);
  s.cluster = sluice::Divisor::of(static_cast<int>(shared.size));
  s.slack = kClusterSlack;
  s.few_spans = static_cast<int>(shared.few_spans);
  s.wait_first = wait_first;
  s.dirty_l2 = dirty_l2;
  check(sluice::decode_schedule(s, shared.spans, c10::cuda::getCurrentCUDAStream()),
        "decode_schedule");
}

void paged_decode(Tensor out, const Tensor& q, Tensor k_cache, Tensor v_cache,
                  const Tensor& block_table, const Tensor& seq_lens, const Tensor& cu_queries,
                  const Tensor& schedule, Tensor partial_out, Tensor partial_stats,
                  const std::optional<Tensor>& alibi_slopes,
                  const std::optional<Tensor>& skipped, const std::optional<Tensor>& shared_splits,
                  const std::optional<Tensor>& shared_out,
                  const std::optional<Tensor>& shared_stats, int64_t max_queries, int64_t window,
                  double scale, double soft_cap, bool wait_first,
                  const std::optional<Tensor>& k_scale, const std::optional<Tensor>& v_scale,
                  const std::optional<Tensor>& new_k, const std::optional<Tensor>& new_v,
                  const std::optional<Tensor>& cos_sin, bool clusters) {
  const bool fp8 = sluice::check_fp8(k_cache, v_cache, k_scale, v_scale);
  check_attention(out, q, k_cache, v_cache, fp8);
  check_batch(seq_lens, cu_queries, block_table, k_cache.size(1));
  check_schedule(schedule);

  const int64_t head_dim = q.size(2), kv_heads = k_cache.size(2), batch = seq_lens.numel();
  const HeadSplit split = split_heads(q.size(1), kv_heads, max_queries, head_dim);
  const int64_t num_ctas = partial_out.size(0);
  TORCH_CHECK(schedule.size(0) == num_ctas + 1, "schedule and partial_out differ in num_ctas");
  TORCH_CHECK(partial_out.scalar_type() == at::kFloat && partial_out.is_contiguous() &&
                  partial_out.numel() >= num_ctas * 2 * sluice::kMaxDecodeRows * head_dim,
              "partial_out must be float32 [num_ctas, 2, ", sluice::kMaxDecodeRows, ", head_dim]");
  const int64_t stats = head_dim / (4 * sluice::kStatsQuads);
  TORCH_CHECK(partial_stats.scalar_type() == at::kFloat && partial_stats.is_contiguous() &&
                  partial_stats.numel() >= num_ctas * 2 * sluice::kMaxDecodeRows * stats * 2,
              "partial_stats must be float32 [num_ctas, 2, ", sluice::kMaxDecodeRows, ", ", stats,
              ", 2]");
  TORCH_CHECK(!alibi_slopes || (alibi_slopes->scalar_type() == at::kFloat &&
                                alibi_slopes->numel() == q.size(1)),
              "alibi_slopes must be float32 [num_q_heads]");

  TORCH_CHECK(scale > 0, "scale must be positive, got ", scale);

  sluice::DecodeParams p = {};
  p.out = out.data_ptr();
  p.q = q.data_ptr();
  p.k_cache = k_cache.data_ptr();
  p.v_cache = v_cache.data_ptr();
  p.line = line_of(schedule);
  p.starts = starts_of(schedule);
  p.line_shape = {seq_lens.data_ptr<int>(), cu_queries.data_ptr<int>(),
                  static_cast<int>(split.items / split.columns), static_cast<int>(window),
                  skipped_of(skipped, window, batch)};
  p.table = table_of(block_table, k_cache.size(1));
  p.alibi_slopes = alibi_slopes ? alibi_slopes->data_ptr<float>() : nullptr;
  p.partial_out = partial_out.data_ptr<float>();
  p.partial_stats = reinterpret_cast<float2*>(partial_stats.data_ptr<float>());
  if (skipped) {
    TORCH_CHECK(shared_splits && shared_out && shared_stats,
                "skipped keys need the results for them");
    TORCH_CHECK(!alibi_slopes && soft_cap == 0 && !fp8,
                "keys cannot be shared with ALiBi, a soft cap or a cache in FP8");
    check_int32(*shared_splits, "shared_splits");
    TORCH_CHECK(shared_splits->numel() >= batch, "shared_splits must match the batch of ", batch);
    check_partial(*shared_out, *shared_stats, q.size(1), head_dim);
    p.shared_out = shared_out->data_ptr<float>();
    p.shared_stats = reinterpret_cast<const float2*>(shared_stats->data_ptr<float>());
    p.shared_splits = shared_splits->data_ptr<int>();
    p.shared_batch = batch;
  }
  p.q_stride = q.stride(0);
  p.out_stride = out.stride(0);
  p.block_stride = k_cache.stride(0);
  p.token_stride = k_cache.stride(1);
  p.num_kv_items = split.items;
  p.columns = split.columns;
  p.parts = sluice::Divisor::of(static_cast<int>(split.parts));
  p.group = sluice::Divisor::of(static_cast<int>(split.group));
  p.scale = scale;
  p.soft_cap = soft_cap;
  p.wait_first = wait_first;
  if (fp8) {
    p.k_scale = k_scale->data_ptr<float>();
    p.v_scale = v_scale->data_ptr<float>();
  }
  if (cos_sin) {
    TORCH_CHECK(!skipped && !alibi_slopes && soft_cap == 0 && !fp8,
                "new keys cannot go with shared ones, ALiBi, a soft cap or a cache in FP8");
    check_new(q, k_cache, new_k, *cos_sin);
    check_new(q, k_cache, new_v, *cos_sin);
    p.new_k = new_k->data_ptr();
    p.new_v = new_v->data_ptr();
    p.cos_sin = cos_sin->data_ptr<float>();
  }
  TORCH_CHECK(!clusters || (!skipped && !alibi_slopes && soft_cap == 0),
              "clusters cannot go with shared keys, ALiBi or a soft cap");
  const c10::cuda::CUDAGuard guard(q.device());
  const Clusters shared = clusters_of(split, schedule, batch, max_queries, clusters);
  p.cluster = sluice::Divisor::of(static_cast<int>(shared.size));
  check(sluice::paged_decode(p, q.scalar_type() == at::kBFloat16, head_dim,
                             split.group * max_queries, shared.spans * split.columns,
                             c10::cuda::getCurrentCUDAStream()),
        "paged_decode");
}

sluice::PrefillParams prefill_params(const Tensor& q, const Tensor& k_cache,
                                     const Tensor& v_cache, const Tensor& block_table,
                                     const Tensor& seq_lens, const Tensor& cu_queries,
                                     double scale) {
  TORCH_CHECK(q.size(1) % k_cache.size(2) == 0,
              "the query heads must be a multiple of the KV heads");
  sluice::PrefillParams p = {};
  p.q = q.data_ptr();
  p.k_cache = k_cache.data_ptr();
  p.v_cache = v_cache.data_ptr();
  p.seq_lens = seq_lens.data_ptr<int>();
  p.cu_queries = cu_queries.data_ptr<int>();
  p.block_table = block_table.data_ptr<int>();
  p.q_stride = q.stride(0);
  p.num_blocks = k_cache.size(0);
  p.table_stride = block_table.stride(0);
  p.block = sluice::Divisor::of(static_cast<int>(k_cache.size(1) / 16));
  p.num_kv_heads = k_cache.size(2);
  p.group = sluice::Divisor::of(static_cast<int>(q.size(1) / k_cache.size(2)));
  p.batch = seq_lens.numel();
  p.scale = scale;
  return p;
}

void paged_prefill(Tensor out, const Tensor& q, const Tensor& k_cache, const Tensor& v_cache,
                   const Tensor& block_table, const Tensor& seq_lens, const Tensor& cu_queries,
                   const Tensor& tiles, int64_t window, double scale, double soft_cap) {
  check_attention(out, q, k_cache, v_cache);
  check_batch(seq_lens, cu_queries, block_table, k_cache.size(1));
  check_int32(tiles, "tiles");
  TORCH_CHECK(tiles.dim() == 2 && tiles.size(1) == 2, "tiles must be [num_tiles, 2]");
  sluice::PrefillParams p =
      prefill_params(q, k_cache, v_cache, block_table, seq_lens, cu_queries, scale);
  p.out = out.data_ptr();
  p.out_stride = out.stride(0);
  p.tiles = reinterpret_cast<const int2*>(tiles.data_ptr<int>());
  p.num_tiles = tiles.size(0);
  p.window = window;
  p.soft_cap = soft_cap;
  const c10::cuda::CUDAGuard guard(q.device());
  check(sluice::paged_prefill(p, q.scalar_type() == at::kBFloat16, q.size(2),
                              c10::cuda::getCurrentCUDAStream()),
        "paged_prefill");
}

void shared_prefix(Tensor partial_out, Tensor partial_stats, const Tensor& q,
                   const Tensor& k_cache, const Tensor& v_cache, const Tensor& block_table,
                   const Tensor& seq_lens, const Tensor& cu_queries, const Tensor& tiles,
                   const Tensor& tile_splits, const Tensor& num_tiles, const Tensor& members,
                   double scale) {
  check_attention(q, q, k_cache, v_cache);
  check_batch(seq_lens, cu_queries, block_table, k_cache.size(1));
  check_partial(partial_out, partial_stats, q.size(1), q.size(2));
  for (const Tensor& t : {tiles, tile_splits, num_tiles, members}) {
    check_int32(t, "tiles, tile_splits, num_tiles and members");
  }
  TORCH_CHECK(tiles.dim() == 2 && tiles.size(1) == 4 && tile_splits.numel() == tiles.size(0) &&
                  num_tiles.numel() == 1,
              "tiles must be [max_tiles, 4], tile_splits [max_tiles] and num_tiles [1]");
  sluice::check_start(tiles, "tiles");
  sluice::PrefillParams p =
      prefill_params(q, k_cache, v_cache, block_table, seq_lens, cu_queries, scale);
  p.shared = reinterpret_cast<const sluice::SharedTile*>(tiles.data_ptr<int>());
  p.num_shared = num_tiles.data_ptr<int>();
  p.members = members.data_ptr<int>();
  p.splits = tile_splits.data_ptr<int>();
  p.partial_out = partial_out.data_ptr<float>();
  p.partial_stats = reinterpret_cast<float2*>(partial_stats.data_ptr<float>());
  const c10::cuda::CUDAGuard guard(q.device());
  check(sluice::shared_prefix(p, q.scalar_type() == at::kBFloat16, q.size(2),
                              c10::cuda::getCurrentCUDAStream()),
        "shared_prefix");
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(sluice_cuda, m) {
  m.def(
      "decode_schedule(Tensor(a!) schedule, Tensor(b!) tile_ends, Tensor seq_lens, "
      "Tensor cu_queries, Tensor block_table, int block_size, int q_heads, int kv_heads, "
      "int head_dim, int max_queries, int min_span, int window, Tensor? skipped, "
      "bool clusters=False, bool wait_first=True, bool dirty_l2=False) -> ()");
  m.def(
      "paged_decode(Tensor(a!) out, Tensor q, Tensor(d!) k_cache, Tensor(e!) v_cache, "
      "Tensor block_table, Tensor seq_lens, Tensor cu_queries, Tensor schedule, "
      "Tensor(b!) partial_out, Tensor(c!) partial_stats, Tensor? alibi_slopes, Tensor? skipped, "
      "Tensor? shared_splits, Tensor? shared_out, Tensor? shared_stats, int max_queries, "
      "int window, float scale, float soft_cap, bool wait_first, Tensor? k_scale=None, "
      "Tensor? v_scale=None, Tensor? new_k=None, Tensor? new_v=None, Tensor? cos_sin=None, "
      "bool clusters=False) -> ()");
  m.def(
      "paged_prefill(Tensor(a!) out, Tensor q, Tensor k_cache, Tensor v_cache, "
      "Tensor block_table, Tensor seq_lens, Tensor cu_queries, Tensor tiles, int window, "
      "float scale, float soft_cap) -> ()");
  m.def(
      "shared_prefix(Tensor(a!) partial_out, Tensor(b!) partial_stats, Tensor q, Tensor k_cache, "
      "Tensor v_cache, Tensor block_table, Tensor seq_lens, Tensor cu_queries, Tensor tiles, "
      "Tensor tile_splits, Tensor num_tiles, Tensor members, float scale) -> ()");
}

TORCH_LIBRARY_IMPL(sluice_cuda, CUDA, m) {
  m.impl("decode_schedule", &decode_schedule);
  m.impl("paged_decode", &paged_decode);
  m.impl("paged_prefill", &paged_prefill);
  m.impl("shared_prefix", &shared_prefix);
}
