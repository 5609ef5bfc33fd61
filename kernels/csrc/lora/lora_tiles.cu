// Low-rank adapters of any number of tokens, beside a layer's product of any kind: shrunk before it
// and expanded behind it (Punica, arXiv:2310.18547; S-LoRA, 2311.03285).
//
// A CTA takes the tokens of a tile, or of a part of it, all of which have one adapter. Sums over
// slices of k are added up where they are expanded, in their order, so that a token's result does
// not depend on the others.

#include "lora/lora_shrink.cuh"

namespace sluice {
namespace {

constexpr int kShrinkWarps = 8;
constexpr int kExpandWarps = 4, kWarpFeatures = 32, kLaneFeatures = 8;
constexpr int kExpandFeatures = kExpandWarps * kWarpFeatures;  // of a CTA
constexpr int kRanks = 16;                                     // that an MMA sums
constexpr int kMaxWalkers = 32;                                // CTAs that share the tiles

// Tokens of a tile that a CTA takes at once.
inline __host__ __device__ int tokens_at_once(const Lora& a) {
  return min(a.rows, 2 * kLoraTokens);
}

template <typename T, int kGroups>  // of 8 tokens
__global__ void __launch_bounds__(kShrinkWarps * 32) shrink_kernel(const ShrinkLora p) {
  __shared__ float partial[kSkinnyTiles][kShrinkWarps][kSkinnyFeatures][kGroups * 8 + 1];
  const int pieces = p.adapters.rows / (kGroups * 8);  // of a tile
  LoraShare share(p.adapters, blockIdx.y / pieces, blockIdx.x);
  share.tokens += blockIdx.y % pieces * kGroups * 8;
  if (!share.is_used(p.adapters) || share.tokens[0] < 0) return wait_for_inputs();
  const TileTokens<T, kGroups> x(p, share.tokens);
  shrink<T, kShrinkWarps, kGroups, kShrinkWarps * 32, false>(p, share, x, partial);
}

// The features of a CTA, all of one part.
struct PartFeatures {
  int part, first, end;  // part: as many as there are if there is nothing for the CTA

  __device__ __forceinline__ PartFeatures(const Lora& a, int chunk) : end(a.ends[0]) {
    for (part = 0; part < a.parts; ++part) {
      const int begin = end;
      end = a.ends[part + 1];
      first = begin + chunk * kExpandFeatures;
      if (first < end) return;
      chunk -= (end - begin + kExpandFeatures - 1) / kExpandFeatures;
    }
  }
};

// What is added to up to kGroups * 16 tokens. Of an MMA's eight features, two are in each lane with
// the same lane % 4; they are dealt out so that four MMAs leave it eight that follow each other.
template <typename T, int kGroups>
struct Expanded {
  float sum[kGroups][kLaneFeatures / 2][4] = {};

  // low: [kGroups * 16][4], four ranks each. up: of this lane's features of the MMAs.
  __device__ __forceinline__ void add(const uint2 (*low)[kRanks / 4],
                                      const uint2 (&up)[kLaneFeatures / 2]) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const uint2 a = low[group * 16 + g][t], b = low[group * 16 + g + 8][t];
#pragma unroll
      for (int i = 0; i < kLaneFeatures / 2; ++i) {
        Half<T>::mma(sum[group][i], {a.x, b.x, a.y, b.y}, up[i].x, up[i].y);
      }
    }
  }

  // before: eight features of token lane / 4 of a group, or, high, of the one eight behind it.
  __device__ __forceinline__ uint4 added_to(const uint4& before, int group, int high) const {
    auto add = [&](uint32_t pair, int i) {
      const float2 x = Half<T>::unpack(pair);
      return Half<T>::pack(x.x + sum[group][i][high * 2], x.y + sum[group][i][high * 2 + 1]);
    };
    return {add(before.x, 0), add(before.y, 1), add(before.z, 2), add(before.w, 3)};
  }
};

template <typename T, int kGroups>  // of 16 tokens
__global__ void __launch_bounds__(kExpandWarps * 32) expand_kernel(const ExpandLora p) {
  constexpr int kTokens = kGroups * 16;
  __shared__ uint2 low[kTokens][kRanks / 4];
  const Lora& a = p.adapters;
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const PartFeatures features(a, blockIdx.x);
  const int first_of_warp = features.first + warp * kWarpFeatures;
  const int of_lane = first_of_warp + t * kLaneFeatures;
  const bool in_part = features.part < a.parts && of_lane < features.end;
  const int pieces = a.rows / kTokens, columns = num_columns(a);

  for (int piece = blockIdx.y; piece < a.num_tiles * pieces; piece += gridDim.y) {
    const int slot = features.part < a.parts ? a.tile_slots[piece / pieces] : -1;
    if (slot < 0) break;
    const int rank = a.ranks[slot * a.rank_stride + features.part];
    const int* tokens = a.tile_tokens + static_cast<int64_t>(piece) * kTokens;
    if (rank == 0 || tokens[0] < 0) continue;

    uint2 up[kLaneFeatures / 2];
    auto load_up = [&](int rank) {
      const int feature = first_of_warp + g / 2 * kLaneFeatures + g % 2;
      const int64_t row = static_cast<int64_t>(slot) * p.features + feature;
      const T* from = static_cast<const T*>(a.up) + row * a.max_rank + rank + t * 4;
#pragma unroll
      for (int i = 0; i < kLaneFeatures / 2; ++i) {
        const bool has = feature + i * 2 < features.end;
        up[i] = has ? __ldg(reinterpret_cast<const uint2*>(from + i * 2 * a.max_rank))
                    : make_uint2(0, 0);
      }
    };
    load_up(0);
    wait_for_inputs();
    allow_next();
    uint4* at[kGroups][2];
    uint4 before[kGroups][2];
#pragma unroll
    for (int i = 0; i < kGroups * 2; ++i) {
      const int token = tokens[i * 8 + g];
      at[i / 2][i % 2] = nullptr;
      if (token < 0 || !in_part) continue;
      T* row = static_cast<T*>(p.out) + static_cast<int64_t>(token) * p.features;
      at[i / 2][i % 2] = reinterpret_cast<uint4*>(row + of_lane);
      before[i / 2][i % 2] = *at[i / 2][i % 2];
    }

    Expanded<T, kGroups> expanded;
    for (int first = 0; first < rank; first += kRanks) {
      if (first > 0) load_up(first);
      __syncthreads();
      for (int i = threadIdx.x; i < kTokens * kRanks / 4; i += kExpandWarps * 32) {
        const int token = tokens[i / 4];
        float4 total = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
        for (int slice = 0; slice < kLoraSlices; ++slice) {
          if (token < 0) continue;
          const int64_t row = static_cast<int64_t>(slice) * p.tokens + token;
          const float* from =
              p.low + row * columns + features.part * a.max_rank + first + i % 4 * 4;
          const float4 x = *reinterpret_cast<const float4*>(from);
          total.x += x.x, total.y += x.y, total.z += x.z, total.w += x.w;
        }
        low[i / 4][i % 4] = {Half<T>::pack(total.x, total.y), Half<T>::pack(total.z, total.w)};
      }
      __syncthreads();
      expanded.add(low, up);
    }
#pragma unroll
    for (int i = 0; i < kGroups * 2; ++i) {
      if (uint4* to = at[i / 2][i % 2]) *to = expanded.added_to(before[i / 2][i % 2], i / 2, i % 2);
    }
  }
  wait_for_inputs();
}

template <typename T>
cudaError_t launch_shrink(const ShrinkLora& p, cudaStream_t stream) {
  const Lora& a = p.adapters;
  const dim3 grid(shrinking_each(a), a.num_tiles * (a.rows / tokens_at_once(a)));
  auto kernel = tokens_at_once(a) == kLoraTokens ? shrink_kernel<T, 2> : shrink_kernel<T, 4>;
  return launch_dependent(kernel, grid, kShrinkWarps * 32, 0, stream, p);
}

template <typename T>
cudaError_t launch_expand(const ExpandLora& p, cudaStream_t stream) {
  const Lora& a = p.adapters;
  const int chunks = p.features / kExpandFeatures + a.parts;  // or less
  const dim3 grid(chunks, min(a.num_tiles * (a.rows / tokens_at_once(a)), kMaxWalkers));
  auto kernel = tokens_at_once(a) == kLoraTokens ? expand_kernel<T, 1> : expand_kernel<T, 2>;
  return launch_dependent(kernel, grid, kExpandWarps * 32, 0, stream, p);
}

}  // namespace

cudaError_t shrink_lora(const ShrinkLora& p, bool bf16, cudaStream_t stream) {
  if (p.tokens == 0 || p.adapters.num_tiles == 0) return cudaSuccess;
  return bf16 ? launch_shrink<__nv_bfloat16>(p, stream) : launch_shrink<__half>(p, stream);
}

cudaError_t expand_lora(const ExpandLora& p, bool bf16, cudaStream_t stream) {
  if (p.tokens == 0 || p.adapters.num_tiles == 0) return cudaSuccess;
  return bf16 ? launch_expand<__nv_bfloat16>(p, stream) : launch_expand<__half>(p, stream);
}

}  // namespace sluice
