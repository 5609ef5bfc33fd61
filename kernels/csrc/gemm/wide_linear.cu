// GEMMs of many tokens on Hopper, with an MLP's gating in place of a kernel after it.
//
// A tile is 128 tokens by up to 256 features, of which each of two warpgroups holds 64 tokens in
// its registers (up to 64 tokens have one warpgroup), or of many tokens 192 by 192, held by three: a square needs the fewest operands,
// and at the GPU's power limit the energy that these take is time. A thread keeps the copy engine
// some stages of 64 elements of k ahead of them, also while they finish a tile. Pairs of CTAs work
// side by side and share one operand, of which each copies half to both: the weight, or where an
// odd number of tiles holds all tokens, the tokens. Gated, the first half of a tile's features are
// gates and the second their ups, so both are in one thread.
//
// CTAs stay and take tile after tile. All pairs together work on a patch that is about as many
// tokens high as features wide, so that what they read twice comes from the L2.

#include <algorithm>

#include "common/dependent_launch.cuh"
#include "common/hopper.cuh"
#include "common/tensor_map.cuh"
#include "common/vector.cuh"
#include "common/wgmma.cuh"
#include "gemm/dense_linear.cuh"

namespace sluice {
namespace {

constexpr int kGroupTokens = 64;  // of each warpgroup that multiplies
constexpr int kChunk = 64;  // elements of k at a time: rows of 128 bytes
constexpr int kPair = 2;
constexpr int kBand = 8;          // most rows of tiles that are worked on side by side
constexpr int kManyTokens = 1024;  // are more, which tiles of 192 tokens hold with little left over

template <int kGroups, int kWidth>
struct Shared {
  static constexpr int kConsumers = kGroups * 128;
  static constexpr int kWarps = kConsumers / 32;
  static constexpr int kThreads = kConsumers + 128;  // registers move between whole warpgroups
  static constexpr int kStages = (kGroups == 1 ? 5 : 4) + (kGroups <= 2 && kWidth <= 192);
  static constexpr int kHalf = kWidth / 2;
  static constexpr int kPart = kGroups <= 2 ? kHalf : kHalf / 2;  // features that leave at a time
  static constexpr int kBoxes = kGroups == 3 ? 3 : 2;  // of x
  static constexpr int kBoxTokens = kGroups * kGroupTokens / kBoxes;
  static constexpr int kPitch = kPart + 8;  // of a token's: other banks for each of eight
  struct Stage {
    uint8_t x[kBoxes][kBoxTokens * kChunk * 2];
    uint8_t weight[2][kHalf * kChunk * 2];
  };
  Stage stages[kStages];
  uint16_t out[kWarps][16 * kPitch];
  uint64_t full[kStages], empty[kStages];
};

struct Maps {
  CUtensorMap x, weight;  // boxes of kBoxTokens and of kHalf rows
};

__host__ __device__ constexpr int blocks(int n, int size) { return (n + size - 1) / size; }

// The tiles of pairs: rows of tokens and columns of features.
template <int kGroups, bool kShareWeight>
__host__ __device__ int rows_of(const DenseLinear& p) {
  return blocks(p.tokens, kGroups * kGroupTokens * (kShareWeight ? kPair : 1));
}

template <int kWidth, bool kShareWeight>
__host__ __device__ int columns_of(const DenseLinear& p) {
  return blocks(p.features, kWidth * (kShareWeight ? 1 : kPair));
}

#ifdef SLUICE_HOPPER

// The tiles of a pair, one after the other: where each of its CTAs has its tokens and features.
template <int kGroups, int kWidth, bool kShareWeight>
class Work {
 public:
  int token, feature;  // first of the tile; of a gated one's gates

  __device__ Work(const DenseLinear& p, int member)
      : member(member), columns(columns_of<kWidth, kShareWeight>(p)),
        rows(rows_of<kGroups, kShareWeight>(p)), width(p.gated ? kWidth / 2 : kWidth),
        most(blocks(rows, blocks(rows, kBand))), index(blockIdx.x / kPair) {}

  __device__ bool next() {
    if (index >= rows * columns) return false;
    const int band = index / (most * columns), at = index % (most * columns);
    const int height = min(most, rows - band * most);
    const int row = band * most + at % height, column = at / height;
    token = (kShareWeight ? row * kPair + member : row) * kGroups * kGroupTokens;
    feature = (kShareWeight ? column : column * kPair + member) * width;
    index += gridDim.x / kPair;
    return true;
  }

 private:
  const int member, columns, rows, width;
  const int most;  // rows of a band: 9 are 5 and 4, as one alone reads all weights for little
  int index;
};

// Starts copies of two boxes of an operand; of a shared one, of half of it to both of the pair.
template <bool kIsShared, int kBoxes, int kBytes>
__device__ __forceinline__ void bring(uint8_t (&to)[kBoxes][kBytes], const CUtensorMap& map,
                                      uint64_t& full, int member, int k, int first, int second) {
  if constexpr (kIsShared) {
    constexpr uint16_t kBoth = 3;
    copy_box_to(kBoth, address(to[member]), map, address(&full), k, member ? second : first);
  } else {
    copy_box(address(to[0]), map, address(&full), k, first);
    copy_box(address(to[1]), map, address(&full), k, second);
  }
}

// One thread.
template <int kGroups, int kWidth, bool kShareWeight>
__device__ void produce(const DenseLinear& p, const Maps& maps, Shared<kGroups, kWidth>& sm,
                        int member) {
  using Memory = Shared<kGroups, kWidth>;
  constexpr int kStages = Memory::kStages;
  static_assert(kGroups <= 2 || kShareWeight, "a pair shares two boxes");
  Work<kGroups, kWidth, kShareWeight> work(p, member);
  Place<kStages> place;
  place.parity = 1;  // of a fresh barrier, this phase counts as ended
  auto bring_weight = [&](const Place<kStages>& to, int chunk) {
    mbarrier_wait(address(&sm.empty[to.stage]), to.parity);
    mbarrier_expect(address(&sm.full[to.stage]), sizeof(typename Memory::Stage));
    const int second = work.feature + (p.gated ? p.features / 2 : Memory::kHalf);
    bring<kShareWeight>(sm.stages[to.stage].weight, maps.weight, sm.full[to.stage], member,
                        chunk * kChunk, work.feature, second);
  };
  auto bring_x = [&](const Place<kStages>& to, int chunk) {
    auto& x = sm.stages[to.stage].x;
    bring<!kShareWeight>(x, maps.x, sm.full[to.stage], member, chunk * kChunk, work.token,
                         work.token + Memory::kBoxTokens);
    if constexpr (kGroups == 3) {
      copy_box(address(x[2]), maps.x, address(&sm.full[to.stage]), chunk * kChunk,
               work.token + 2 * kGroupTokens);
    }
  };
  const int chunks = p.k / kChunk;
  bool waited = false;
  while (work.next()) {
    int chunk = 0;
    if (!waited) {  // the first weights, while the kernel that makes x ends
      const int ahead = min(chunks, kStages);
      Place<kStages> early = place;
      for (int i = 0; i < ahead; ++i, early.advance()) bring_weight(early, i);
      wait_for_inputs();
      for (; chunk < ahead; ++chunk, place.advance()) bring_x(place, chunk);
      waited = true;
    }
    for (; chunk < chunks; ++chunk, place.advance()) {
      bring_weight(place, chunk);
      bring_x(place, chunk);
    }
  }
  allow_next();
  for (int i = 0; i < kStages; ++i, place.advance()) {  // until nobody arrives here any more
    mbarrier_wait(address(&sm.empty[place.stage]), place.parity);
  }
}

template <typename T>
struct alignas(4) Two {
  T x[2];
};

template <typename T>
__device__ __forceinline__ uint32_t packed(float a, float b) {
  const Two<T> both{from_float<T>(a), from_float<T>(b)};
  return reinterpret_cast<const uint32_t&>(both);
}

// silu(gate) * up of two features each, rounded after every operation.
template <typename T>
__device__ __forceinline__ uint32_t gate(uint32_t gates, uint32_t ups) {
  const auto& g = reinterpret_cast<const Two<T>&>(gates);
  const auto& up = reinterpret_cast<const Two<T>&>(ups);
  float y[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float x = to_float(g.x[i]);
    y[i] = rounded<T>(x / (1.f + __expf(-x))) * to_float(up.x[i]);
  }
  return packed<T>(y[0], y[1]);
}

// Accumulators 4 * group .. of a thread are of tokens t and t + 8, features f and f + 1 of eight.
template <typename T, int kWidth>
__device__ __forceinline__ void add_bias(const T* bias, float (&sum)[kWidth / 2], int second,
                                         int features) {
  const int column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int group = 0; group < kWidth / 8; ++group) {
    constexpr int kHalfGroups = kWidth / 16;
    const int at = group % kHalfGroups * 8 + column + (group < kHalfGroups ? 0 : second);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float b = at + i < features ? to_float(bias[at + i]) : 0.f;
      sum[4 * group + i] += b;
      sum[4 * group + 2 + i] += b;
    }
  }
}

// One warp: some features of its 16 tokens from registers to memory, by way of shared memory so
// that whole rows are written. value(i): accumulators i and i + 1, packed.
template <typename T, typename Memory, typename Value>
__device__ __forceinline__ void leave(const DenseLinear& p, uint16_t* staged, int token, int column,
                                      int outputs, Value&& value) {
  const int lane = threadIdx.x % 32;
  constexpr int kVectors = Memory::kPart / 8;  // of a row
  constexpr int kOwn = kVectors / 2;           // of 16 rows, for each thread
  const auto row = [lane](int i) { return (i * 32 + lane) / kVectors; };
  const auto at = [lane](int i) { return (i * 32 + lane) % kVectors * 8; };
  const auto inside = [&](int i) { return token + row(i) < p.tokens && column + at(i) < outputs; };
  const uint32_t to = address(staged + lane % 16 * Memory::kPitch + lane / 16 * 8);
#pragma unroll
  for (int i = 0; i < Memory::kPart / 2; i += 8) {
    store_matrices(to + i / 8 * 32, value(i), value(i + 2), value(i + 4), value(i + 6));
  }
  __syncwarp();
  T* out = static_cast<T*>(p.out) + static_cast<int64_t>(token) * outputs + column;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if (!inside(i)) continue;
    *reinterpret_cast<uint4*>(out + row(i) * outputs + at(i)) =
        *reinterpret_cast<const uint4*>(staged + row(i) * Memory::kPitch + at(i));
  }
  __syncwarp();
}

// One warpgroup.
template <typename T, int kGroups, int kWidth>
__device__ __forceinline__ void finish(const DenseLinear& p, Shared<kGroups, kWidth>& sm,
                                       float (&sum)[kWidth / 2], int token, int feature) {
  using Memory = Shared<kGroups, kWidth>;
  constexpr int kHalf = Memory::kHalf, kPart = Memory::kPart;
  const int warp = threadIdx.x / 32, outputs = p.gated ? p.features / 2 : p.features;
  token += warp * 16;
  if (p.bias) {
    add_bias<T, kWidth>(static_cast<const T*>(p.bias) + feature, sum, p.gated ? outputs : kHalf,
                        p.features - feature);
  }
  auto values = [&sum](int first) {  // of the features from this one on
    return [&sum, first](int i) {
      return packed<T>(sum[first / 2 + i], sum[first / 2 + i + 1]);
    };
  };
  if (p.gated) {
#pragma unroll
    for (int first = 0; first < kHalf; first += kPart) {
      const auto gates = values(first), ups = values(kHalf + first);
      leave<T, Memory>(p, sm.out[warp], token, feature + first, outputs,
                       [&](int i) { return gate<T>(gates(i), ups(i)); });
    }
  } else {
#pragma unroll
    for (int first = 0; first < kWidth; first += kPart) {
      leave<T, Memory>(p, sm.out[warp], token, feature + first, outputs, values(first));
    }
  }
}

// One warpgroup.
template <typename T, int kGroups, int kWidth, bool kShareWeight>
__device__ void consume(const DenseLinear& p, Shared<kGroups, kWidth>& sm, int member) {
  constexpr int kStages = Shared<kGroups, kWidth>::kStages;
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32, chunks = p.k / kChunk;
  Work<kGroups, kWidth, kShareWeight> work(p, member);
  Place<kStages> place, last;
  auto release = [&](int stage) {  // to both of the pair: each copies to both
    if (lane < kPair) mbarrier_arrive_at(lane, address(&sm.empty[stage]));
  };
  float sum[kWidth / 2];
  while (work.next()) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      mbarrier_wait(address(&sm.full[place.stage]), place.parity);
      const uint32_t x = address(sm.stages[place.stage].x[0]) + group * kGroupTokens * kChunk * 2;
      const uint32_t weight = address(sm.stages[place.stage].weight);
      pin(sum);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kChunk / 16; ++step) {
        wgmma<T>(sum, tile_descriptor(x + step * 32, 16), tile_descriptor(weight + step * 32, 16),
                 chunk == 0 && step == 0);
      }
      wgmma_commit();
      if (chunk > 0) {
        wgmma_wait<1>();
        release(last.stage);
      }
      last = place;
      place.advance();
    }
    wgmma_wait<0>();
    pin(sum);
    release(last.stage);
    finish<T>(p, sm, sum, work.token, work.feature);
  }
}

#endif  // Hopper

template <typename T, int kGroups, int kWidth, bool kShareWeight>
__global__ void __launch_bounds__(Shared<kGroups, kWidth>::kThreads, 1)
    wide_linear_kernel(const DenseLinear p, const __grid_constant__ Maps maps) {
#ifdef SLUICE_HOPPER
  using Memory = Shared<kGroups, kWidth>;
  constexpr int kConsumers = Memory::kConsumers;
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& sm = *reinterpret_cast<Memory*>(raw);
  const int member = blockIdx.x % kPair;
  if (threadIdx.x == kConsumers) {
    prefetch_map(maps.weight);
    prefetch_map(maps.x);
    for (int stage = 0; stage < Memory::kStages; ++stage) {
      mbarrier_init(address(&sm.full[stage]), 1);
      mbarrier_init(address(&sm.empty[stage]), kPair * Memory::kWarps);
    }
    mbarrier_init_fence();
  }
  meet_cluster();
  if (threadIdx.x < kConsumers) {
    if constexpr (kGroups > 1) take_registers<kGroups == 2 ? 224 : 160>();
    consume<T, kGroups, kWidth, kShareWeight>(p, sm, member);
  } else {
    if constexpr (kGroups > 1) give_up_registers<kGroups == 2 ? 56 : 32>();
    if (threadIdx.x == kConsumers) {
      produce<kGroups, kWidth, kShareWeight>(p, maps, sm, member);
    }
  }
#endif
}

// A matrix, to be copied in boxes of `rows` x kChunk elements; what lies outside it reads as zeros.
cudaError_t describe(CUtensorMap& map, const void* matrix, int64_t rows, int k, int64_t stride,
                     int box_rows, bool bf16) {
  const auto encode = tensor_map_encoder();
  if (!encode) return cudaErrorNotSupported;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(stride) * 2};  // in bytes
  const cuuint32_t box[] = {kChunk, static_cast<cuuint32_t>(box_rows)}, steps[] = {1, 1};
  const CUresult result = encode(
      &map, bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2,
      const_cast<void*>(matrix), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

// How many pairs of CTAs the device works on at a time; none: it cannot.
template <typename Kernel>
int most_pairs(Kernel* kernel, int threads, int smem) {
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem) !=
      cudaSuccess) {
    return 0;
  }
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {kPair, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = kPair;
  config.blockDim = threads;
  config.dynamicSmemBytes = smem;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int pairs = 0;
  return cudaOccupancyMaxActiveClusters(&pairs, kernel, &config) == cudaSuccess ? pairs : 0;
}

template <typename T, int kGroups, int kWidth, bool kShareWeight>
cudaError_t launch(const DenseLinear& p, cudaStream_t stream) {
  constexpr bool kBf16 = std::is_same_v<T, __nv_bfloat16>;
  constexpr int kThreads = Shared<kGroups, kWidth>::kThreads;
  const auto kernel = wide_linear_kernel<T, kGroups, kWidth, kShareWeight>;
  const int smem = sizeof(Shared<kGroups, kWidth>);
  static const int most = most_pairs(kernel, kThreads, smem);
  if (most == 0) return cudaErrorInvalidConfiguration;
  Maps maps;
  cudaError_t error = describe(maps.x, p.x, p.tokens, p.k, p.x_stride,
                               Shared<kGroups, kWidth>::kBoxTokens, kBf16);
  if (error == cudaSuccess) {
    error = describe(maps.weight, p.weight, p.features, p.k, p.k, kWidth / 2, kBf16);
  }
  if (error != cudaSuccess) return error;
  const int tiles = rows_of<kGroups, kShareWeight>(p) * columns_of<kWidth, kShareWeight>(p);
  const unsigned pairs = std::min(most, tiles);
  return launch_dependent_clusters(kernel, pairs * kPair, kThreads, smem, stream, kPair, p, maps);
}

template <typename T, int kWidth>
cudaError_t dispatch(const DenseLinear& p, cudaStream_t stream) {
  if constexpr (kWidth == 192) {
    if (p.tokens > kManyTokens) return launch<T, 3, kWidth, true>(p, stream);
  }
  if (p.tokens <= kGroupTokens) return launch<T, 1, kWidth, false>(p, stream);
  const int rows = blocks(p.tokens, 2 * kGroupTokens);
  const bool share_weight = rows % kPair == 0 || rows > kBand;  // of many, one half tile is little
  return share_weight ? launch<T, 2, kWidth, true>(p, stream)
                      : launch<T, 2, kWidth, false>(p, stream);
}

template <typename T>
cudaError_t dispatch(const DenseLinear& p, cudaStream_t stream) {
  switch (p.shape) {
    case 192:
      return dispatch<T, 192>(p, stream);
    case 224:
      return dispatch<T, 224>(p, stream);
    case 256:
      return dispatch<T, 256>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t wide_linear(const DenseLinear& linear, bool bf16, cudaStream_t stream) {
  if (linear.tokens == 0) return cudaSuccess;
  return bf16 ? dispatch<__nv_bfloat16>(linear, stream) : dispatch<__half>(linear, stream);
}

}  // namespace sluice
