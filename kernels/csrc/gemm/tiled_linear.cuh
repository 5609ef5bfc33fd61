// GEMMs of dozens of tokens with quantized weights on Hopper: what the formats share.
//
// The weight is wgmma's first operand, with 64 features a warpgroup, and the tokens are its second:
// out^T = weight x^T. A CTA makes 128 or 256 features of up to 128 tokens; a cluster of CTAs shares
// the sum over k of the same features and adds its parts up through shared memory, in the order of
// the CTAs.
//
// A thread keeps the copy engine as far ahead as shared memory allows. The first weights are on
// their way before the kernel that makes x has ended.
#pragma once

#include <algorithm>
#include <array>

#include "common/dependent_launch.cuh"
#include "common/hopper.cuh"
#include "common/tensor_map.cuh"
#include "common/vector.cuh"
#include "common/wgmma.cuh"
#include "gemm/quantized_linear.cuh"

namespace sluice::tiled {

inline constexpr int kGroupRows = 64;  // features of a warpgroup
inline constexpr int kChunk = 128;     // elements of k at a time
inline constexpr int kPanel = 128;     // bytes of a token in a panel of x, swizzled
inline constexpr int kMaxStages = 8;
inline constexpr int kMaxSplit = 8;  // CTAs of a cluster

// A format says what a chunk is made of, and multiplies:
//   Out             type of the results
//   Row, X          types of a feature's and a token's elements for the copy engine, and kRowType,
//                   kXType its names for them
//   kGroups         warpgroups that multiply: 4, or 2 of each of an SM's two CTAs
//   kRowBytes       of a feature in a chunk, 64 or 128
//   kXBytes         of a token in a chunk, a multiple of kPanel
//   multiply(sum, p, sm, work, feature)  adds up a warpgroup's chunks, features from `feature` on
//   scale(p, feature, token)             what a finished sum is multiplied with
template <typename Format>
struct Team {
  static constexpr int kGroups = Format::kGroups;
  static constexpr int kCtas = 4 / kGroups;  // of an SM
  static constexpr int kFeatures = kGroups * kGroupRows;
  static constexpr int kConsumers = kGroups * 128;
  static constexpr int kThreads = kConsumers + (kCtas == 1 ? 128 : 32);
};

// Shared memory of a CTA; an SM has some 220 KB for its CTAs.
template <typename Format, int kTokens>
struct Shared {
  static constexpr int kPitch = Team<Format>::kFeatures + 4;  // another bank for each lane
  static constexpr int kStageBytes = 216 * 1024 / Team<Format>::kCtas;
  struct Stage {
    uint8_t weight[Format::kGroups][kGroupRows * Format::kRowBytes];
    uint8_t x[Format::kXBytes / kPanel][kTokens * kPanel];
  };
  static constexpr int kFit = kStageBytes / sizeof(Stage);
  static constexpr int kStages = kFit < kMaxStages ? kFit : kMaxStages;
  union {
    Stage stages[kStages];
    float sums[kTokens][kPitch];
  };
  uint64_t full[kStages], empty[kStages];
};

struct Maps {
  CUtensorMap weight, x;
};

// What a CTA makes: features and tokens, and the part of the sum over k that is its own.
struct Work {
  int tile, first_token, rank, split;
  int begin, end;  // chunks
};

#ifdef SLUICE_HOPPER

inline constexpr int kMultiplied = 1;  // the named barrier of the warpgroups

__device__ __forceinline__ Work work_of(const QuantizedLinear& p, int split, int tokens) {
  const int token_tiles = (p.tokens + tokens - 1) / tokens, chunks = p.k / kChunk;
  const int cluster = blockIdx.x / split, rank = blockIdx.x % split;
  return {cluster / token_tiles,        cluster % token_tiles * tokens, rank, split,
          chunks * rank / split, chunks * (rank + 1) / split};
}

// First feature of a warpgroup: gated, half of them have gates and the others their ups.
template <typename Format>
__device__ __forceinline__ int first_feature(const QuantizedLinear& p, int tile, int group) {
  constexpr int kHalf = Format::kGroups / 2;
  if (!p.gated) return (tile * Format::kGroups + group) * kGroupRows;
  return group / kHalf * (p.features / 2) + (tile * kHalf + group % kHalf) * kGroupRows;
}

// One thread.
template <typename Format, int kTokens>
__device__ void produce(const QuantizedLinear& p, const Maps& maps, Shared<Format, kTokens>& sm,
                        const Work& work) {
  using Memory = Shared<Format, kTokens>;
  auto bring_weight = [&](int stage, int chunk) {
    const uint32_t full = address(&sm.full[stage]);
    mbarrier_expect(full, sizeof(typename Memory::Stage));
#pragma unroll
    for (int group = 0; group < Format::kGroups; ++group) {
      copy_box(address(sm.stages[stage].weight[group]), maps.weight, full,
               chunk * (Format::kRowBytes / sizeof(typename Format::Row)),
               first_feature<Format>(p, work.tile, group));
    }
  };
  auto bring_x = [&](int stage, int chunk) {
#pragma unroll
    for (int panel = 0; panel < Format::kXBytes / kPanel; ++panel) {
      copy_box(address(sm.stages[stage].x[panel]), maps.x, address(&sm.full[stage]),
               (chunk * Format::kXBytes + panel * kPanel) / sizeof(typename Format::X),
               work.first_token);
    }
  };
  const int ahead = min(work.end - work.begin, Memory::kStages);
  for (int i = 0; i < ahead; ++i) bring_weight(i, work.begin + i);
  wait_for_inputs();
  for (int i = 0; i < ahead; ++i) bring_x(i, work.begin + i);
  Place<Memory::kStages> place;
  for (int chunk = work.begin + ahead; chunk < work.end; ++chunk) {
    mbarrier_wait(address(&sm.empty[place.stage]), place.parity);
    bring_weight(place.stage, chunk);
    bring_x(place.stage, chunk);
    place.advance();
  }
  allow_next();
}

// One warpgroup: its features' sums over the span, left in shared memory.
template <typename Format, int kTokens>
__device__ void consume(const QuantizedLinear& p, Shared<Format, kTokens>& sm, const Work& work) {
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32;
  float sum[kTokens / 2] = {};
  Format::template multiply<kTokens>(sum, p, sm, work, first_feature<Format>(p, work.tile, group));
  sync_named(kMultiplied, Team<Format>::kConsumers);  // the sums take the place of the stages
  const int row = group * kGroupRows + threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) {
    sm.sums[i / 4 * 8 + lane % 4 * 2 + i % 2][row + i % 4 / 2 * 8] = sum[i];
  }
}

// Four features of a token, over all CTAs of the cluster: scaled, the bias added, rounded to T.
template <typename Format>
__device__ __forceinline__ float4 finished(const QuantizedLinear& p, const Work& work,
                                           const float* sums, int feature, int token) {
  using T = typename Format::Out;
  float4 total = *reinterpret_cast<const float4*>(sums);
  if (work.split > 1) {
    total = load_from(0, address(sums));
    for (int rank = 1; rank < work.split; ++rank) {
      const float4 part = load_from(rank, address(sums));
      total = {total.x + part.x, total.y + part.y, total.z + part.z, total.w + part.w};
    }
  }
  float v[4] = {total.x, total.y, total.z, total.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[i] *= Format::scale(p, feature + i, token);
    if (p.bias) v[i] += to_float(static_cast<const T*>(p.bias)[feature + i]);
    v[i] = rounded<T>(v[i]);
  }
  return {v[0], v[1], v[2], v[3]};
}

template <typename T>
__device__ __forceinline__ float gate(float gate, float up) {
  return rounded<T>(gate / (1.f + __expf(-gate))) * up;
}

template <typename T>
struct alignas(8) Four {
  T x[4];
};

// This CTA's share of the cluster's outputs.
template <typename Format, int kTokens>
__device__ void finish(const QuantizedLinear& p, Shared<Format, kTokens>& sm, const Work& work) {
  using T = typename Format::Out;
  constexpr int kFeatures = Team<Format>::kFeatures, kConsumers = Team<Format>::kConsumers;
  const int width = p.gated ? kFeatures / 2 : kFeatures;  // outputs of the cluster
  const int outputs = p.gated ? p.features / 2 : p.features;
  const int quads = width / 4, tokens = min(kTokens, p.tokens - work.first_token);
  for (int i = work.rank * kConsumers + threadIdx.x; i < quads * tokens;
       i += work.split * kConsumers) {
    const int row = i / quads, at = i % quads * 4, output = work.tile * width + at;
    if (output >= outputs) continue;
    const int token = work.first_token + row;
    float4 v = finished<Format>(p, work, &sm.sums[row][at], output, token);
    if (p.gated) {
      const float4 up = finished<Format>(p, work, &sm.sums[row][kFeatures / 2 + at],
                                         outputs + output, token);
      v = {gate<T>(v.x, up.x), gate<T>(v.y, up.y), gate<T>(v.z, up.z), gate<T>(v.w, up.w)};
    }
    T* to = static_cast<T*>(p.out) + static_cast<int64_t>(token) * outputs + output;
    *reinterpret_cast<Four<T>*>(to) = {from_float<T>(v.x), from_float<T>(v.y), from_float<T>(v.z),
                                       from_float<T>(v.w)};
  }
}

#endif  // Hopper

template <typename Format, int kTokens>
__global__ void __launch_bounds__(Team<Format>::kThreads, Team<Format>::kCtas)
    tiled_linear_kernel(const QuantizedLinear p, int split, const __grid_constant__ Maps maps) {
#ifdef SLUICE_HOPPER
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& sm = *reinterpret_cast<Shared<Format, kTokens>*>(raw);
  constexpr int kConsumers = Team<Format>::kConsumers;
  const Work work = work_of(p, split, kTokens);
  if (threadIdx.x == kConsumers) {
    prefetch_map(maps.weight);
    prefetch_map(maps.x);
    for (int stage = 0; stage < Shared<Format, kTokens>::kStages; ++stage) {
      mbarrier_init(address(&sm.full[stage]), 1);
      mbarrier_init(address(&sm.empty[stage]), kConsumers / 32);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < kConsumers) {
    if constexpr (Team<Format>::kCtas == 1) take_registers<112>();
    consume(p, sm, work);
  } else {
    if constexpr (Team<Format>::kCtas == 1) give_up_registers<32>();
    if (threadIdx.x == kConsumers) produce(p, maps, sm, work);
  }
  __syncthreads();
  if (split > 1) sync_cluster();
  if (threadIdx.x < kConsumers) {
    wait_for_inputs();  // scales of tokens; and nobody still reads what is written
    finish(p, sm, work);
  }
  if (split > 1) meet_cluster();  // the others have read this CTA's sums
#endif
}

// A matrix of `rows` x `columns`, to be copied in boxes of box_rows x box_columns; what lies
// outside it reads as zeros.
inline cudaError_t describe(CUtensorMap& map, const void* matrix, CUtensorMapDataType type,
                            int64_t rows, int columns, int64_t row_bytes, int box_rows,
                            int box_columns, CUtensorMapSwizzle swizzle) {
  const auto encode = tensor_map_encoder();
  if (!encode) return cudaErrorNotSupported;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(row_bytes)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(box_columns),
                            static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[] = {1, 1};
  const CUresult result =
      encode(&map, type, 2, const_cast<void*>(matrix), sizes, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

// How many CTAs share the sum over k: what needs the least time, counted in chunks.
template <typename Format, int kTokens>
int choose_split(int tiles, int chunks) {
  static const auto room = [] {  // clusters of each size that run at once
    std::array<int, kMaxSplit + 1> clusters = {};
    for (int size = 1; size <= kMaxSplit; ++size) {
      cudaLaunchAttribute attribute = {};
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim = {static_cast<unsigned>(size), 1, 1};
      cudaLaunchConfig_t config = {};
      config.gridDim = size;
      config.blockDim = Team<Format>::kThreads;
      config.dynamicSmemBytes = sizeof(Shared<Format, kTokens>);
      config.attrs = &attribute;
      config.numAttrs = 1;
      const auto kernel = tiled_linear_kernel<Format, kTokens>;
      if (cudaOccupancyMaxActiveClusters(&clusters[size], kernel, &config) != cudaSuccess) {
        clusters[size] = 0;
        cudaGetLastError();
      }
    }
    return clusters;
  }();
  // Chunks' time that a CTA takes besides, and one more for each to add up.
  constexpr int kStart = 2;
  int best = 1, least = 1 << 30;
  for (int size = 1; size <= std::min(kMaxSplit, chunks); ++size) {
    if (room[size] == 0) continue;
    const int waves = (tiles + room[size] - 1) / room[size];
    const int time = waves * ((chunks + size - 1) / size + size + kStart);
    if (time < least) best = size, least = time;
  }
  return best;
}

// split: CTAs that share the sum over k; 0: choose.
template <typename Format, int kTokens>
cudaError_t launch(const QuantizedLinear& p, int split, cudaStream_t stream) {
  using Row = typename Format::Row;
  using X = typename Format::X;
  Maps maps;
  const int row_bytes = p.k / kChunk * Format::kRowBytes;
  cudaError_t error =
      describe(maps.weight, p.weight, Format::kRowType, p.features, row_bytes / sizeof(Row),
               row_bytes, kGroupRows, Format::kRowBytes / sizeof(Row),
               Format::kRowBytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B);
  if (error == cudaSuccess) {
    error = describe(maps.x, p.x, Format::kXType, p.tokens, p.k, p.x_stride * sizeof(X), kTokens,
                     kPanel / sizeof(X), CU_TENSOR_MAP_SWIZZLE_128B);
  }
  if (error != cudaSuccess) return error;
  const int smem = sizeof(Shared<Format, kTokens>);
  auto kernel = tiled_linear_kernel<Format, kTokens>;
  static const cudaError_t ready =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
  if (ready != cudaSuccess) return ready;
  constexpr int kFeatures = Team<Format>::kFeatures;
  const int tiles = (p.features + kFeatures - 1) / kFeatures * ((p.tokens + kTokens - 1) / kTokens);
  if (split == 0) split = choose_split<Format, kTokens>(tiles, p.k / kChunk);
  return launch_dependent_clusters(kernel, tiles * split, Team<Format>::kThreads, smem, stream,
                                   split, p, split, maps);
}

// By the least tile that holds all tokens. ForMany: of kMost, the largest.
template <typename Format, typename ForMany = Format, int kMost = 128>
cudaError_t dispatch(const QuantizedLinear& p, int split, cudaStream_t stream) {
  if (p.tokens <= 16) return launch<Format, 16>(p, split, stream);
  if (p.tokens <= 32) return launch<Format, 32>(p, split, stream);
  if (p.tokens <= 64) return launch<Format, 64>(p, split, stream);
  return launch<ForMany, kMost>(p, split, stream);
}

}  // namespace sluice::tiled
