// A library with one function for test_emulated_decode.py: decode_schedule and paged_decode in one.

#include "attention/decode_attention.cuh"

namespace {

using namespace sluice;

DecodeParams params;

template <typename T, template <typename, int> typename kTile, int D, int kRowTiles, int kStages,
          Extras kExtras>
void launch(int spans) {
  using Tile = kTile<T, D>;
  using Kernel = DecodeAttention<T, Tile, D, kRowTiles, kStages, kExtras>;
  using Memory = typename Kernel::Memory;
  constexpr size_t kBytes = (sizeof(Memory) + 511) / 512 * 512;
  const int cluster = params.cluster.value;
  std::vector<uint8_t> memory(kBytes * cluster + 512, 0xff);  // NaN
  const auto at = (reinterpret_cast<uintptr_t>(memory.data()) + 511) / 512 * 512;
  for (int y = 0; y < spans; y += cluster) {
    for (int x = 0; x < params.columns; ++x) {
      for (int rank = 0; rank < cluster; ++rank) {
        auto* own = reinterpret_cast<uint8_t*>(at + rank * kBytes);
        emulation::ctas[rank] = {{x, y + rank, 0}, own, {}};
      }
      emulation::run_cluster(cluster, [] {
        auto* shared = reinterpret_cast<Memory*>(emulation::shared_memory);
        Kernel(params, *shared).run();
      });
    }
  }
}

template <typename T, template <typename, int> typename kTile, int D>
void launch_rows(int rows, int spans) {
  constexpr int kStages = 3;
  if (params.soft_cap > 0.f || params.alibi_slopes) {
    launch<T, kTile, D, 2, kStages, Extras::kScores>(spans);
  } else if (params.new_k) {
    if constexpr (!kTile<T, D>::kFp8) {
      rows <= 8 ? launch<T, kTile, D, 1, kStages, Extras::kNew>(spans)
                : launch<T, kTile, D, 2, kStages, Extras::kNew>(spans);
    }
  } else if (rows <= 8) {
    launch<T, kTile, D, 1, kStages, Extras::kNone>(spans);
  } else {
    launch<T, kTile, D, 2, kStages, Extras::kNone>(spans);
  }
}

}  // namespace

struct Request {
  void *out, *q, *k_cache, *v_cache;
  const int *seq_lens, *cu_queries, *blocks;
  const float *k_scale, *v_scale, *alibi_slopes, *sinks;
  const void *new_k, *new_v;
  const float* cos_sin;
  int* tile_ends;
  float* partial_out;
  float2* partial_stats;
  int batch, table_width, block_size, kv_heads, parts, group, columns, head_dim, max_rows, spans;
  int window, q_stride, cluster, displacing, few_spans;
  float scale, soft_cap;
};

// How many of a CTA's first tiles push out what the L2 holds.
extern "C" int displacing(int sequences, int tiles_of_each, bool dirty_l2) {
  DecodeSchedule s = {};
  s.batch = sequences;
  s.shape.num_heads = 1;
  s.cluster = Divisor::of(1);
  s.dirty_l2 = dirty_l2;
  s.few_spans = 33;
  return line_of(s, sequences * tiles_of_each, tiles_of_each, 33).displacing;
}

// Spans that have work: of 32, or of 16 where they are short.
extern "C" int spans_with_work(int sequences, int tiles_of_each) {
  DecodeSchedule s = {};
  s.batch = sequences;
  s.shape.num_heads = 1;
  s.cluster = Divisor::of(1);
  s.few_spans = 16;
  const DecodeLine line = line_of(s, sequences * tiles_of_each, tiles_of_each, 32);
  return (line.total + line.span - 1) / line.span;
}

// How many pieces of keys and values were asked for so that they push out what the L2 holds.
extern "C" int displacing_copies() { return copies_by_policy[kUsualPolicy]; }

// Returns whether clusters shared the work.
extern "C" bool decode(const Request& c) {
  copies_by_policy.clear();
  DecodeSchedule s = {};
  const int items = c.kv_heads * c.parts;
  s.shape = {c.seq_lens, c.cu_queries, items / c.columns, c.window, nullptr};
  s.table = {c.blocks, c.table_width, c.block_size, Divisor::of(c.block_size / 16)};
  s.tile_ends = c.tile_ends;
  s.batch = c.batch;
  s.cluster = Divisor::of(c.cluster);
  s.slack = 1;
  s.few_spans = c.few_spans;
  int tiles = 0, longest = 0;
  for (int i = 0; i < c.batch; ++i) {
    Cursor cursor = {};
    cursor.seq = i;
    open_sequence(s.shape, cursor);
    tiles += cursor.num_tiles;
    longest = max(longest, cursor.num_tiles);
    c.tile_ends[i] = tiles;
  }
  DecodeLine line = line_of(s, tiles, longest, c.spans);
  line.displacing = c.displacing;
  std::vector<DecodeStart> starts;
  for (int i = 0; i < c.spans; ++i) starts.push_back(start_of(s, line, i));

  const int heads = items * c.group;
  params = {};
  params.out = c.out;
  params.q = c.q;
  params.k_cache = c.k_cache;
  params.v_cache = c.v_cache;
  params.line = &line;
  params.starts = starts.data();
  params.line_shape = s.shape;
  params.table = s.table;
  params.alibi_slopes = c.alibi_slopes;
  params.sinks = c.sinks;
  params.partial_out = c.partial_out;
  params.partial_stats = c.partial_stats;
  params.q_stride = c.q_stride;
  params.out_stride = heads * c.head_dim;
  params.token_stride = c.kv_heads * c.head_dim;
  params.block_stride = params.token_stride * c.block_size;
  params.num_kv_items = items;
  params.columns = c.columns;
  params.parts = Divisor::of(c.parts);
  params.group = Divisor::of(c.group);
  params.scale = c.scale;
  params.soft_cap = c.soft_cap;
  params.k_scale = c.k_scale;
  params.v_scale = c.v_scale;
  params.new_k = c.new_k;
  params.new_v = c.new_v;
  params.cos_sin = c.cos_sin;
  params.cluster = s.cluster;
  if (c.k_scale) {
    c.head_dim == 96 ? launch_rows<__nv_bfloat16, Fp8Tile, 96>(c.max_rows, c.spans)
                     : launch_rows<__nv_bfloat16, Fp8Tile, 128>(c.max_rows, c.spans);
  } else {
    c.head_dim == 96 ? launch_rows<__nv_bfloat16, PlainTile, 96>(c.max_rows, c.spans)
                     : launch_rows<__nv_bfloat16, PlainTile, 128>(c.max_rows, c.spans);
  }
  return line.clustered;
}
