// The loading half of the prefill kernel (paged_prefill.cu): what a CTA works on, its shared
// memory, and the warps that fill it.
#pragma once

#include "attention/paged_prefill.cuh"
#include "common/hopper.cuh"
#include "common/mma.cuh"

namespace sluice::prefill {

inline constexpr int kRows = kPrefillRows;
inline constexpr int kGroups = 2;  // warpgroups that multiply
inline constexpr int kGroupRows = kRows / kGroups;
inline constexpr int kConsumers = kGroups * 128;
inline constexpr int kThreads = kConsumers + 128;
inline constexpr int kQueryThreads = 96;
inline constexpr int kStages = 2;
inline constexpr int kBoxTokens = 16;
inline constexpr int kPanelBytes = 128;  // of a row of a panel: 64 elements
inline constexpr int kPatchBytes = 8 * kPanelBytes;  // of 8 rows of a panel: what a swizzle spans

struct Maps {
  CUtensorMap k, v;
};

// What a CTA works on: rows of a sequence, and blocks [first, last] of its keys.
struct Tile {
  int seq, head;
  int seq_len;
  int row, num_rows;  // the first one, and how many the sequence (or the group) has
  int query_start;    // token of row 0, or the first member
  int computed;       // position of row 0
  int begin, end;     // keys that some row sees
  int index;          // in the list of tiles; negative: there is none, and no more after it
};

// Queries lie panel by panel. Keys and values lie 8 tokens by 8 tokens, panel by panel in each:
// what one copy brings of 16 tokens then lies in a row.
template <int D>
struct Shared {
  static constexpr int kKeys = D > 128 ? 64 : 128;  // of one block
  static constexpr int kPanels = D / 64;
  static constexpr int kGroupBytes = kPanels * kPatchBytes;  // of 8 tokens
  static constexpr int kBoxBytes = kBoxTokens / 8 * kGroupBytes;
  static constexpr int kQueryStages = D > 128 ? 1 : 2;
  uint8_t q[kQueryStages][kGroups][kPanels * kGroupRows * kPanelBytes];
  uint8_t k[kStages][kPanels * kKeys * kPanelBytes];
  uint8_t v[kStages][kPanels * kKeys * kPanelBytes];
  uint64_t k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
  uint64_t q_full[kQueryStages], q_empty[kQueryStages];
  Tile tiles[kQueryStages];
};

#ifdef SLUICE_HOPPER

inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr int kFilled = 1;  // the named barrier of the warpgroups that multiply

template <bool kShared>
class Work {
 public:
  explicit __device__ Work(const PrefillParams& params)
      : p(params), count((kShared ? *p.num_shared : p.num_tiles) * p.num_kv_heads) {}

  __device__ bool next(Tile& tile) {
    const int grid = gridDim.x, cta = blockIdx.x;
    const int item = turn * grid + (turn % 2 ? grid - 1 - cta : cta);
    ++turn;
    tile.index = -1;
    if (item >= count) return false;
    const int index = item / p.num_kv_heads;
    tile.index = index;
    tile.head = item % p.num_kv_heads;
    if constexpr (kShared) {
      const SharedTile shared = p.shared[index];
      tile.seq = p.members[shared.first_member];  // any of them
      tile.seq_len = p.seq_lens[tile.seq];
      tile.row = 0;
      tile.num_rows = shared.num_members * p.group.value;
      tile.query_start = shared.first_member;
      tile.computed = shared.end - 1;
      tile.begin = shared.begin;
      tile.end = shared.end;
    } else {
      const int2 t = p.tiles[index];
      tile.seq = t.x;
      tile.seq_len = p.seq_lens[t.x];
      tile.query_start = p.cu_queries[t.x];
      const int queries = p.cu_queries[t.x + 1] - tile.query_start;
      tile.row = t.y * kRows;
      tile.num_rows = queries * p.group.value;
      tile.computed = tile.seq_len - queries;
      const int oldest = tile.computed + quotient(tile.row, p.group) - p.window + 1;
      tile.begin = p.window > 0 ? max(oldest, 0) : 0;
      tile.end = tile.computed + min(queries, quotient(tile.row + kRows - 1, p.group) + 1);
    }
    return true;
  }

  // Which elements of the queries or the output are a row's.
  __device__ int64_t place(const Tile& tile, int row, int64_t stride, int head_dim) const {
    const int query = quotient(row, p.group), head = row - query * p.group.value;
    return token(tile, query) * stride + (tile.head * p.group.value + head) * head_dim;
  }

  // The token of a query of the tile's sequence, or of a member.
  __device__ int64_t token(const Tile& tile, int query) const {
    const int at = tile.query_start + query;
    return kShared ? p.cu_queries[p.members[at]] : at;
  }

 private:
  const PrefillParams& p;
  const int count;
  int turn = 0;
};

template <int D, bool kShared>
class Producer {
  using Memory = Shared<D>;
  static constexpr int kBoxes = Memory::kKeys / kBoxTokens;
  static_assert(kBoxes <= 32, "one lane a box");

 public:
  __device__ Producer(const PrefillParams& params, const Maps& maps, Memory& shared)
      : p(params), maps(maps), sm(shared), lane(threadIdx.x % 32) {}

  // One warp.
  __device__ void run() {
    Work<kShared> work(p);
    Tile tile, following;
    bool more = work.next(tile);
    int newest = more ? box_of(tile, last_block(tile)) : 0;
    for (; more; tile = following) {
      const int first = tile.begin / Memory::kKeys, last = last_block(tile);
      int box = newest;
      copy(maps.k, tile, last, box, k_place, sm.k[k_place.stage], sm.k_full, sm.k_empty);
      for (int block = last; block >= first; --block) {
        const int v_box = box;
        if (block > first) {
          box = box_of(tile, block - 1);
          copy(maps.k, tile, block - 1, box, k_place, sm.k[k_place.stage], sm.k_full, sm.k_empty);
        }
        copy(maps.v, tile, block, v_box, v_place, sm.v[v_place.stage], sm.v_full, sm.v_empty);
        if (block == last) {  // while there is time, what the next tile begins with
          more = work.next(following);
          if (more) newest = box_of(following, last_block(following));
        }
      }
    }
  }

 private:
  const PrefillParams& p;
  const Maps& maps;
  Memory& sm;
  const int lane;
  Place<kStages> k_place, v_place;

  static __device__ int last_block(const Tile& tile) { return (tile.end - 1) / Memory::kKeys; }

  // Which 16 tokens of the cache are this lane's of a block of keys; -1: none.
  __device__ int box_of(const Tile& tile, int block) const {
    const int box = block * kBoxes + lane;
    if (lane >= kBoxes || box * kBoxTokens >= tile.seq_len) return -1;
    const int64_t row = static_cast<int64_t>(tile.seq) * p.table_stride;
    const int column = quotient(box, p.block);
    return (p.block_table[row + column] - column) * p.block.value + box;
  }

  __device__ void copy(const CUtensorMap& map, const Tile& tile, int block, int box,
                       Place<kStages>& place, const uint8_t* to, uint64_t* full, uint64_t* empty) {
    const uint32_t arrived = address(&full[place.stage]);
    mbarrier_wait(address(&empty[place.stage]), place.parity ^ 1);
    const int keys = min(Memory::kKeys, tile.seq_len - block * Memory::kKeys);
    const int boxes = (keys + kBoxTokens - 1) / kBoxTokens;
    if (lane == 0) mbarrier_expect(arrived, boxes * Memory::kBoxBytes);
    __syncwarp();
    if (box >= 0) {
      copy_box(address(to) + lane * Memory::kBoxBytes, map, arrived, 0, 0, 0, tile.head,
               box * (kBoxTokens / 8));
    }
    place.advance();
  }
};

// Brings the queries of a tile, and what the tile is, while the last one is worked on.
template <typename T, int D, bool kShared>
class QueryProducer {
  using Memory = Shared<D>;
  static constexpr int kPieces = D / 8;  // of 16 bytes
  static constexpr int kStep = kQueryThreads / kPieces;
  static_assert(kQueryThreads % kPieces == 0, "a thread loads the same piece of several rows");

 public:
  __device__ QueryProducer(const PrefillParams& params, Memory& shared) : p(params), sm(shared) {}

  // kQueryThreads threads, numbered from 32.
  __device__ void run() {
    const int thread = threadIdx.x - 32, piece = thread % kPieces;
    const T* q = static_cast<const T*>(p.q) + piece * 8;
    Work<kShared> work(p);
    Place<Memory::kQueryStages> place;
    for (bool more = true; more; place.advance()) {
      Tile tile;
      more = work.next(tile);
      mbarrier_wait(address(&sm.q_empty[place.stage]), place.parity ^ 1);
      if (thread == 0) sm.tiles[place.stage] = tile;
#pragma unroll 4
      for (int r = thread / kPieces; more && r < kRows; r += kStep) {
        const int row = tile.row + r;
        const bool real = row < tile.num_rows;
        const T* from = real ? q + work.place(tile, row, p.q_stride, D) : q;
        const int at = (piece / 8 * kGroupRows + r % kGroupRows) * kPanelBytes;
        const uint32_t to = address(sm.q[place.stage][r / kGroupRows]) + at;
        cp_async_16(to + ((piece % 8) ^ (r % 8)) * 16, from, real);
      }
      cp_async_commit();
      cp_async_wait<0>();
      fence_async_proxy();
      mbarrier_arrive(address(&sm.q_full[place.stage]));
    }
  }

 private:
  const PrefillParams& p;
  Memory& sm;
};

#endif  // Hopper

}  // namespace sluice::prefill
