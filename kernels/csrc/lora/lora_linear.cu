// Low-rank adapters of few tokens (Punica, arXiv:2310.18547) in the launch of the layer's own
// product, that of skinny_linear.cu.
//
// The first CTAs shrink x to the adapters' ranks, as others multiply it with features: each 32 of
// them and a slice of k, so that they are done long before the others are. Each of those has a warp
// more than without adapters. It waits for the ranks, multiplies them with what they expand to, and
// keeps its sums beside those of the other warps, which go on reading weights meanwhile. CTAs are
// dispatched in the order of their indices, so whoever waits has those it waits for running or
// behind it.
//
// A warp more than 16 on an SM leaves each 96 registers, in which the sums of more than 8 tokens do
// not fit: for those the two launches of lora_tiles.cu around a plain product are faster.

#include "common/device.cuh"
#include "gemm/skinny_sums.cuh"
#include "lora/lora_shrink.cuh"

namespace sluice {
namespace {

constexpr int kBlock = 16;       // of ranks that an MMA sums
constexpr int kTilesAtOnce = 4;  // of tokens, whose matrices are loaded

inline __host__ __device__ int num_shrinking(const Lora& a) {
  return a.num_tiles * shrinking_each(a);
}

inline __host__ __device__ int num_expanding(const LoraLinear& p) {
  return (p.features / kSkinnyFeatures + kSkinnyTiles - 1) / kSkinnyTiles;
}

// Sums of each warp.
template <int kWarps, int kGroups>
using Partial = float[kSkinnyTiles][kWarps + 1][kSkinnyFeatures][kGroups * 8 + 1];

// A CTA's part in shrinking, after which it is counted.
template <typename T, int kWarps, int kGroups>
__device__ __forceinline__ void shrink_and_arrive(const LoraLinear& p,
                                                  Partial<kWarps, kGroups>& partial) {
  const int each = shrinking_each(p.adapters);
  const LoraShare share(p.adapters, blockIdx.x / each, blockIdx.x % each);
  if (share.slot < 0) return;
  if (share.is_used(p.adapters)) {
    shrink<T, kWarps, kGroups, (kWarps + 1) * 32, true>(p, share, SkinnyTokens<T>(p), partial);
    __syncthreads();
  } else {
    wait_for_inputs();  // the launch before is done with the counters
  }
  if (threadIdx.x == 0) arrive(p.counters);
}

// Whose adapter a lane's tokens have. Of a tile's number every lane i knows what is said of tile i.
template <int kGroups>
struct TokenTiles {
  int slot, num_used;     // slot: -1 behind the last tile that is used
  int of_token[kGroups];  // token lane / 4 of each group; -1: none

  __device__ __forceinline__ explicit TokenTiles(const Lora& a) {
    __shared__ int tile_of[kLoraTokens];
    const int lane = threadIdx.x % 32;
    slot = lane < a.num_tiles ? a.tile_slots[lane] : -1;
    num_used = __popc(__ballot_sync(~0u, slot >= 0));
    if (lane < kLoraTokens) tile_of[lane] = -1;
    __syncwarp();
    for (int i = lane; i < num_used * kLoraTokens; i += 32) {
      if (a.tile_tokens[i] >= 0) tile_of[a.tile_tokens[i]] = i / kLoraTokens;
    }
    __syncwarp();
#pragma unroll
    for (int group = 0; group < kGroups; ++group) of_token[group] = tile_of[group * 8 + lane / 4];
  }
};

// What the adapters add to the features of a CTA. One warp computes it.
template <typename T, int kGroups>
class Expansion {
 public:
  __device__ __forceinline__ Expansion(const LoraLinear& p, int cta)
      : p_(p), a_(p.adapters), tiles_(p.adapters) {
    const int lane = threadIdx.x % 32, end = lane < a_.parts ? a_.ends[lane + 1] : 0;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = i / 2 * kSkinnyFeatures + i % 2 * 8 + lane / 4;
      feature_[i] = skinny_feature<kSkinnyTiles>(row, p.features, p.gated, cta);
      part_[i] = 0;
    }
    for (int part = 0; part < a_.parts; ++part) {
      const int behind = __shfl_sync(~0u, end, part);
#pragma unroll
      for (int i = 0; i < kRows; ++i) part_[i] += feature_[i] >= behind;
    }
    if (!is_whole(p.features, cta)) part_[2] = part_[3] = a_.parts;
  }

  __device__ __forceinline__ void add(float (&sum)[kSkinnyTiles][kGroups][4]) {
    if (tiles_.num_used == 0) return;
    for (int part = 0; part < a_.parts; ++part) {
      bool any = false;
#pragma unroll
      for (int i = 0; i < kRows; ++i) any |= part_[i] == part;
      if (!__any_sync(~0u, any)) continue;
      const int rank = tiles_.slot < 0 ? 0 : a_.ranks[tiles_.slot * a_.rank_stride + part];
      for (int first = 0; __any_sync(~0u, first < rank); first += kBlock) {
        add_block(sum, part, first, rank);
      }
    }
    leave();
  }

 private:
  static constexpr int kRows = kSkinnyTiles * 2;  // of features, that a lane has in MMAs

  // rank: of the tile of this lane's number.
  __device__ __forceinline__ void add_block(float (&sum)[kSkinnyTiles][kGroups][4], int part,
                                            int first, int rank) {
    uint2 low[kGroups];
    for (int tile = 0; tile < tiles_.num_used; tile += kTilesAtOnce) {
      uint2 up[kTilesAtOnce][kRows];
#pragma unroll
      for (int u = 0; u < kTilesAtOnce; ++u) load_up(up[u], tile + u, part, first, rank);
      if (tile == 0) load_low(low, part * a_.max_rank + first, first, rank);
#pragma unroll
      for (int u = 0; u < kTilesAtOnce; ++u) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          const bool own = tiles_.of_token[group] == tile + u;
          const uint2 x = own ? low[group] : make_uint2(0, 0);
#pragma unroll
          for (int i = 0; i < kSkinnyTiles; ++i) {
            const uint2 g = up[u][i * 2], h = up[u][i * 2 + 1];
            Half<T>::mma(sum[i][group], {g.x, h.x, g.y, h.y}, x.x, x.y);
          }
        }
      }
    }
  }

  // Four ranks of each row; 0 where the adapter has none. No kernel writes them.
  __device__ __forceinline__ void load_up(uint2 (&up)[kRows], int tile, int part, int first,
                                          int rank) const {
    const int64_t slot = __shfl_sync(~0u, tiles_.slot, tile);
    const bool has = first < __shfl_sync(~0u, rank, tile);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      up[i] = make_uint2(0, 0);
      if (!has || part_[i] != part) continue;
      const int64_t row_index = slot * p_.features + feature_[i];
      const T* row = static_cast<const T*>(a_.up) + row_index * a_.max_rank;
      up[i] = __ldg(reinterpret_cast<const uint2*>(row + first + threadIdx.x % 4 * 4));
    }
  }

  // The same ranks of each token, which other CTAs have computed.
  __device__ __forceinline__ void load_low(uint2 (&low)[kGroups], int column, int first, int rank) {
    wait_for_ranks();
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int token = group * 8 + threadIdx.x % 32 / 4, tile = tiles_.of_token[group];
      const bool has = first < __shfl_sync(~0u, rank, max(tile, 0)) && tile >= 0;
      float4 total = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
      for (int slice = 0; slice < kLoraSlices; ++slice) {
        const int64_t row = static_cast<int64_t>(slice) * p_.tokens + token;
        const float* at = p_.low + row * num_columns(a_) + column + threadIdx.x % 4 * 4;
        if (!has) continue;
        const float4 x = __ldcg(reinterpret_cast<const float4*>(at));
        total.x += x.x, total.y += x.y, total.z += x.z, total.w += x.w;
      }
      low[group] = {Half<T>::pack(total.x, total.y), Half<T>::pack(total.z, total.w)};
    }
  }

  __device__ __forceinline__ void wait_for_ranks() {
    wait_for_inputs();  // the launch before is done with the counters
    const int expected = tiles_.num_used * shrinking_each(a_);
    while (read_now(p_.counters) < expected) {
    }
  }

  // The last to do so leaves the counters as they were.
  __device__ __forceinline__ void leave() {
    wait_for_inputs();
    if (threadIdx.x % 32 != 0 || arrive(p_.counters + 1) != num_expanding(p_) - 1) return;
    wait_for_ranks();
    p_.counters[0] = 0;
    p_.counters[1] = 0;
  }

  const LoraLinear& p_;
  const Lora& a_;
  TokenTiles<kGroups> tiles_;
  int feature_[kRows], part_[kRows];
};

template <typename T, int kWarps, int kGroups>  // groups of 8 tokens
__global__ void __launch_bounds__((kWarps + 1) * 32, kSmWarps / kWarps)
    lora_linear_kernel(const LoraLinear p) {
  __shared__ Partial<kWarps, kGroups> partial;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int cta = blockIdx.x - num_shrinking(p.adapters);
  if (cta < 0) return shrink_and_arrive<T, kWarps, kGroups>(p, partial);
  float sum[kSkinnyTiles][kGroups][4] = {};
  if (warp < kWarps) {
    sum_skinny<T, kWarps>(sum, skinny_rows<T>(p, cta), SkinnyTokens<T>(p), warp,
                          p.k / kSkinnyChunk);
    allow_next();
  } else {
    Expansion<T, kGroups>(p, cta).add(sum);
  }
#pragma unroll
  for (int tile = 0; tile < kSkinnyTiles; ++tile) {
    keep_skinny(partial[tile][warp], sum[tile], lane / 4, lane % 4);
  }
  __syncthreads();
  store_skinny_sums<T, (kWarps + 1) * 32>(p, cta, partial);
}

template <typename T, int kWarps>
cudaError_t launch_warps(const LoraLinear& p, cudaStream_t stream) {
  constexpr int kGroups = kLoraLinearTokens / 8;
  const int ctas = num_shrinking(p.adapters) + num_expanding(p);
  return launch_dependent(lora_linear_kernel<T, kWarps, kGroups>, ctas, (kWarps + 1) * 32, 0,
                          stream, p);
}

// By how many CTAs an SM gets: as skinny products measure fastest.
template <typename T>
cudaError_t launch(const LoraLinear& p, cudaStream_t stream) {
  if (num_expanding(p) <= num_sms()) return launch_warps<T, 16>(p, stream);
  if (num_expanding(p) <= 2 * num_sms()) return launch_warps<T, 8>(p, stream);
  return launch_warps<T, 4>(p, stream);
}

}  // namespace

cudaError_t lora_linear(const LoraLinear& p, bool bf16, cudaStream_t stream) {
  if (p.tokens == 0) return cudaSuccess;
  return bf16 ? launch<__nv_bfloat16>(p, stream) : launch<__half>(p, stream);
}

}  // namespace sluice
