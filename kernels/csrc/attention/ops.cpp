#include "attention/paged_decode.cuh"
#include "attention/paged_prefill.cuh"
#include "common/dependent_launch.cuh"
#include "common/device.cuh"

namespace sluice {
namespace {

static_assert(sizeof(DecodeStart) == 24 * sizeof(int) && kMaxDecodeRows == 32 && kStatsQuads == 8,
              "sizes of the arguments");

// How the heads of a step are cut into work; the same for its schedule and for its launches.
struct HeadSplit {
  int64_t parts;    // items per KV head, so that the rows of one fit one pass
  int64_t group;    // query heads per item
  int64_t items;    // per sequence
  int64_t columns;  // items worked on side by side
};

HeadSplit split_heads(int64_t q_heads, int64_t kv_heads, int64_t max_queries, int64_t head_dim) {
  const int64_t max_rows = head_dim == 256 ? 16 : kMaxDecodeRows;
  require(q_heads % kv_heads == 0, "the query heads must be a multiple of the KV heads");
  require(max_queries >= 1 && max_queries <= max_rows, "max_queries must be in [1, ", max_rows,
              "], got ", max_queries);
  const int64_t whole = q_heads / kv_heads;
  int64_t parts = 1;
  while (whole % parts != 0 || whole / parts * max_queries > max_rows) ++parts;
  int64_t columns = 8;
  while (kv_heads * parts % columns != 0) --columns;
  return {parts, whole / parts, kv_heads * parts, columns};
}

// How many CTAs of a cluster share an item, the same for a step's schedule and for its launches,
// how many spans that leaves, and how many of them are used where they are short.
struct Clusters {
  int64_t size, spans, few_spans;
};

constexpr int kClusterSlack = 1;  // tiles: about what merging by way of memory takes

Clusters clusters_of(const HeadSplit& split, int64_t ctas, int64_t batch,
                     int64_t max_queries, bool wanted) {
  const int64_t spans = ctas / split.columns;
  const int64_t items = batch * (split.items / split.columns);
  if (!wanted || !device_has_dependent_launch() ||
      split.group * max_queries > kMaxClusterRows) {
    return {1, spans, spans};
  }
  // Several for each of few items, but half as many as the SMs could hold: of more, some would not
  // be resident at once, and their CTAs would wait for a whole run of others. Sixteen are on half
  // of the SMs, which pays where merging is most of the time: with many rows.
  const bool many_rows = split.group * max_queries > 8, fills = ctas >= num_sms() * 2;
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

DecodeTable table_of(const int* block_table, int stride, int block_size) {
  require(block_size % 16 == 0, "block_size must be a multiple of 16, got ", block_size);
  return {block_table, stride, block_size, Divisor::of(block_size / 16)};
}

template <typename Args>
DecodeLineShape shape_of(const Args& args, const HeadSplit& split) {
  require(args.batch >= 1, "seq_lens must not be empty");
  require(args.skipped == nullptr || args.window == 0,
          "keys cannot be shared under a sliding window");
  return {args.seq_lens, args.cu_queries, static_cast<int>(split.items / split.columns),
          args.window, args.skipped};
}

// The step's own keys and values beside its queries in their projection.
void set_new(DecodeParams& p, const DecodeArguments& args, const Call& call) {
  if (args.cos_sin == nullptr) return;
  require(args.new_k != nullptr && args.new_v != nullptr, "cos_sin needs new_k and new_v");
  require(call.stride("new_k", 0) == args.q_stride && call.stride("new_v", 0) == args.q_stride,
          "new_k and new_v must be beside q in one projection");
  p.new_k = args.new_k;
  p.new_v = args.new_v;
  p.cos_sin = args.cos_sin;
}

// What shared_prefix left.
void set_shared(DecodeParams& p, const DecodeArguments& args) {
  if (args.skipped == nullptr) return;
  require(args.splits != nullptr && args.shared_out != nullptr && args.shared_stats != nullptr,
          "skipped keys need the results for them: splits, shared_out and shared_stats");
  p.shared_out = args.shared_out;
  p.shared_stats = reinterpret_cast<const float2*>(args.shared_stats);
  p.shared_splits = args.splits;
  p.shared_batch = args.batch;
}

}  // namespace

OP(decode_schedule, ScheduleArguments) {
  const HeadSplit split =
      split_heads(args.num_q_heads, args.num_kv_heads, args.max_queries, args.head_dim);
  const Clusters shared =
      clusters_of(split, args.num_ctas, args.batch, args.max_queries, args.clusters);
  DecodeSchedule s = {};
  s.line = reinterpret_cast<DecodeLine*>(args.schedule);
  s.starts = reinterpret_cast<DecodeStart*>(args.schedule) + 1;
  s.tile_ends = args.tile_ends;
  s.shape = shape_of(args, split);
  s.table = table_of(args.block_table, args.table_stride, args.block_size);
  s.batch = args.batch;
  s.min_span = args.min_span;
  s.cluster = Divisor::of(static_cast<int>(shared.size));
  s.slack = kClusterSlack;
  s.few_spans = static_cast<int>(shared.few_spans);
  s.wait_first = args.wait_first;
  s.dirty_l2 = args.dirty_l2;
  return decode_schedule(s, static_cast<int>(shared.spans), call.stream);
}

OP(paged_decode, DecodeArguments) {
  require_scales(call, "k_cache", {"k_scale", "v_scale"});
  require(args.scale > 0, "scale must be positive, got ", args.scale);
  const bool plain_scores = args.alibi_slopes == nullptr && args.soft_cap == 0;
  const bool fp8 = args.k_scale != nullptr;
  require(args.skipped == nullptr || (plain_scores && !fp8),
          "keys cannot be shared with ALiBi, a soft cap or a cache in FP8");
  require(args.cos_sin == nullptr || (plain_scores && !fp8 && args.skipped == nullptr),
          "new keys cannot go with shared ones, ALiBi, a soft cap or a cache in FP8");
  require(!args.clusters || (plain_scores && args.skipped == nullptr),
          "clusters cannot go with shared keys, ALiBi or a soft cap");
  const HeadSplit split =
      split_heads(args.num_q_heads, args.num_kv_heads, args.max_queries, args.head_dim);
  const Clusters shared =
      clusters_of(split, args.num_ctas, args.batch, args.max_queries, args.clusters);
  DecodeParams p = {};
  p.out = args.out;
  p.q = args.q;
  p.k_cache = args.k_cache;
  p.v_cache = args.v_cache;
  p.line = reinterpret_cast<const DecodeLine*>(args.schedule);
  p.starts = reinterpret_cast<const DecodeStart*>(args.schedule) + 1;
  p.line_shape = shape_of(args, split);
  p.table = table_of(args.block_table, args.table_stride, args.block_size);
  p.alibi_slopes = args.alibi_slopes;
  p.sinks = args.sinks;
  p.partial_out = args.partial_out;
  p.partial_stats = reinterpret_cast<float2*>(args.partial_stats);
  set_shared(p, args);
  p.q_stride = args.q_stride;
  p.out_stride = args.out_stride;
  p.token_stride = int64_t{args.num_kv_heads} * args.head_dim;
  p.block_stride = p.token_stride * args.block_size;
  p.num_kv_items = static_cast<int>(split.items);
  p.columns = static_cast<int>(split.columns);
  p.parts = Divisor::of(static_cast<int>(split.parts));
  p.group = Divisor::of(static_cast<int>(split.group));
  p.scale = args.scale;
  p.soft_cap = args.soft_cap;
  p.cluster = Divisor::of(static_cast<int>(shared.size));
  p.wait_first = args.wait_first;
  p.k_scale = args.k_scale;
  p.v_scale = args.v_scale;
  set_new(p, args, call);
  return paged_decode(p, call.bf16(), args.head_dim,
                      static_cast<int>(split.group) * args.max_queries,
                      static_cast<int>(shared.spans * split.columns), call.stream);
}

template <typename Args>
static PrefillParams prefill_params(const Args& args) {
  require(args.num_q_heads % args.num_kv_heads == 0,
          "the query heads must be a multiple of the KV heads, got ", args.num_q_heads, " and ",
          args.num_kv_heads);
  require(args.block_size % 16 == 0, "block_size must be a multiple of 16, got ", args.block_size);
  PrefillParams p = {};
  p.q = args.q;
  p.k_cache = args.k_cache;
  p.v_cache = args.v_cache;
  p.seq_lens = args.seq_lens;
  p.cu_queries = args.cu_queries;
  p.block_table = args.block_table;
  p.q_stride = args.q_stride;
  p.num_blocks = args.num_blocks;
  p.table_stride = args.table_stride;
  p.block = Divisor::of(args.block_size / 16);
  p.num_kv_heads = args.num_kv_heads;
  p.group = Divisor::of(args.num_q_heads / args.num_kv_heads);
  p.batch = args.batch;
  p.scale = args.scale;
  return p;
}

OP(paged_prefill, PrefillArguments) {
  PrefillParams p = prefill_params(args);
  p.out = args.out;
  p.out_stride = args.out_stride;
  p.tiles = reinterpret_cast<const int2*>(args.tiles);
  p.num_tiles = args.num_tiles;
  p.window = args.window;
  p.soft_cap = args.soft_cap;
  p.sinks = args.sinks;
  return paged_prefill(p, call.bf16(), args.head_dim, call.stream);
}

OP(shared_prefix, SharedPrefixArguments) {
  PrefillParams p = prefill_params(args);
  p.shared = reinterpret_cast<const SharedTile*>(args.tiles);
  p.num_shared = args.num_tiles;
  p.members = args.members;
  p.splits = args.tile_splits;
  p.partial_out = args.shared_out;
  p.partial_stats = reinterpret_cast<float2*>(args.shared_stats);
  return shared_prefix(p, call.bf16(), args.head_dim, call.stream);
}

}  // namespace sluice
