// What one launch for a layer's products has in shared memory, and the warps that bring it there.
//
// Weights go through a ring of stages, product after product, and wait for room and nothing else:
// while CTAs hand each other their results, the ring fills. The tokens' chunks of 64 elements of k
// have a ring of their own. CTAs are in pairs that multiply the same chunks with different weights;
// each brings every other chunk, to both.
//
// Every hand-over waits behind the weights that are under way. So no more of them are than keep
// memory busy, and fewer still while the ring fills after a product: those are needed last.
#pragma once

#include "common/dependent_launch.cuh"
#include "common/grid_counts.cuh"
#include "common/hopper.cuh"
#include "gemm/layer_products.cuh"

namespace sluice::products {

constexpr int kPair = 2;
constexpr int kSplit = 4;  // CTAs that share k of a product, except for the gates'
constexpr int kTokens = kMostProductTokens;
constexpr int kChunk = 64;                     // elements of k: rows of 128 bytes
constexpr int kRowBytes = kChunk * 2;
constexpr int kTileRows = 128;                 // features of attention's output and of down
constexpr int kPanelBytes = kTileRows * kRowBytes;
constexpr int kStages = 5, kStageBytes = 2 * kPanelBytes;
constexpr int kWindow = 3;  // stages that are under way at a time
constexpr int kRefill = 1;  // while the ring fills at the beginning of a product
constexpr int kSlots = 8, kSlotBytes = kTokens * kRowBytes;
constexpr int kWarps = 8, kConsumers = kWarps * 32;
constexpr int kThreads = kConsumers + 128;  // registers move between whole warpgroups
constexpr int kConsumerRegisters = 208, kProducerRegisters = 88;
constexpr int kScaled = 2;  // barrier of those who make the norms' scales, and those who use them
constexpr int kScaledThreads = kConsumers + kTokens;

// The products, in their order. A count for each says how many CTAs have ended it. Nobody waits for
// the last one: its count is of CTAs that wait for no other any more.
enum { kOutput, kGateUp, kDown, kQkv, kLeft = kQkv };
static_assert((kLeft + 1) * 32 == kProductCounts);

// The sizes of a layer, and who has what of it.
template <int kHiddenSize, int kIntermediateSize, int kFeatures>
struct Shape {
  static constexpr int kHidden = kHiddenSize, kIntermediate = kIntermediateSize;
  static constexpr int kQkvFeatures = kFeatures;
  static constexpr int kTiles = kHidden / kTileRows;
  static constexpr int kCtas = kSplit * kTiles;
  static constexpr int kGates = kIntermediate / kCtas / 2;  // of a warpgroup, and as many ups
  static constexpr int kQkvRows = kQkvFeatures / kTiles;    // of a tile
  static constexpr int kPartSize = 64 * kTokens / kSplit * 2;  // floats, of both warpgroups
  static constexpr int kQkvPartSize = kQkvRows * kTokens / kSplit;
  static_assert(kHidden % (kTileRows * kPair) == 0 && kHidden % (kSplit * 2 * kChunk) == 0);
  static_assert(kIntermediate % (kSplit * 2 * kChunk) == 0);
  static_assert(kGates * kCtas * 2 == kIntermediate && kGates % 8 == 0);
  static_assert(kQkvRows * kTiles == kQkvFeatures && kQkvRows % (2 * kSplit * 8) == 0);
  static_assert(4 * kGates * kRowBytes <= kStageBytes && kQkvRows * kRowBytes <= kStageBytes);

  // Stages of a product's weights.
  static __host__ __device__ constexpr int steps(int product) {
    return product == kOutput   ? kHidden / kSplit / (2 * kChunk)
           : product == kGateUp ? kHidden / kChunk
           : product == kDown   ? kIntermediate / kSplit / (2 * kChunk)
                                : kHidden / kSplit / kChunk;
  }
  // Chunks of tokens for a product.
  static __host__ __device__ constexpr int chunks(int product) {
    return steps(product) * (product == kOutput || product == kDown ? 2 : 1);
  }
  static constexpr int kFirst = steps(kOutput) < kWindow ? steps(kOutput) : kWindow;
};

struct Shared {
  uint8_t weights[kStages][kStageBytes];
  uint8_t x[kSlots][kSlotBytes];  // between two products also what leaves
  float scales[kTokens];          // of the norm behind the rows that are multiplied
  uint64_t full[kStages], empty[kStages];
  // Of a slot: full, read by this CTA, read by both of the pair.
  uint64_t x_full[kSlots], x_empty[kSlots], x_free[kSlots];
};
static_assert(sizeof(Shared) <= 227 * 1024);

// What a launch is given.
struct Launch {
  CUtensorMap weights[4], x[4];  // by product; without the last behind the last layer
  LayerProducts layer;
  int num_products;
};

// The part of a CTA in the products.
struct Role {
  int rank;         // in its pair
  int split, tile;  // which part of k of which features it multiplies

  static __device__ Role of_cta() {
    const int rank = blockIdx.x % kPair, pair = blockIdx.x / kPair;
    return {rank, pair % kSplit, pair / kSplit * kPair + rank};
  }
};

__device__ __forceinline__ int* count_of(const Launch& p, int product) {
  return p.layer.counts + product * 32;
}

// Returns when all CTAs have ended a product; the copy engine sees their results then, too.
template <typename Sizes>
__device__ __forceinline__ void await_product(const Launch& p, int product) {
  await_count_awake(count_of(p, product), Sizes::kCtas);
  fence_async_proxy_global();
}

// For one thread.
template <typename Sizes>
class WeightProducer {
 public:
  __device__ WeightProducer(const Launch& launch, Shared& shared, const Role& role)
      : p(launch), sm(shared), role(role), policy(evict_first_policy()) {}

  // The first stages, which are free, before anybody waits for anything.
  __device__ __forceinline__ void begin() {
#pragma unroll 1
    for (int i = 0; i < Sizes::kFirst; ++i) copy(kOutput, i, i);
  }

  // All others.
  __device__ void run() {
    Place<kStages> place, arrived;
    place.stage = Sizes::kFirst % kStages;
    place.parity = Sizes::kFirst < kStages;  // of a fresh barrier, this phase counts as ended
    int under_way = Sizes::kFirst;
#pragma unroll 1
    for (int product = kOutput; product < p.num_products; ++product) {
      const int steps = Sizes::steps(product);
#pragma unroll 1
      for (int i = product == kOutput ? Sizes::kFirst : 0; i < steps; ++i, place.advance()) {
        mbarrier_wait(address(&sm.empty[place.stage]), place.parity);
        const int window = i < kStages ? kRefill : kWindow;
        for (; under_way >= window; --under_way, arrived.advance()) {
          mbarrier_wait(address(&sm.full[arrived.stage]), arrived.parity);
        }
        ++under_way;
        copy(product, i, place.stage);
      }
    }
  }

 private:
  const Launch& p;
  Shared& sm;
  const Role role;
  const uint64_t policy;

  __device__ __forceinline__ void copy(int product, int step, int stage) {
    const uint32_t full = address(&sm.full[stage]), to = address(sm.weights[stage]);
    const CUtensorMap& map = p.weights[product];
    if (product == kGateUp) {
      // All of k; of each warpgroup the gates and then the ups.
      constexpr int kGates = Sizes::kGates, kBytes = kGates * kRowBytes;
      mbarrier_expect(full, 4 * kBytes);
      const int row = blockIdx.x * 2 * kGates;
#pragma unroll
      for (int group = 0; group < 2; ++group) {
        const int gate = row + group * kGates, up = Sizes::kIntermediate + gate;
        copy_box(to + 2 * group * kBytes, map, full, step * kChunk, gate, policy);
        copy_box(to + (2 * group + 1) * kBytes, map, full, step * kChunk, up, policy);
      }
    } else if (product == kQkv) {
      mbarrier_expect(full, Sizes::kQkvRows * kRowBytes);
      const int k = role.split * (Sizes::kHidden / kSplit) + step * kChunk;
      copy_box(to, map, full, k, role.tile * Sizes::kQkvRows, policy);
    } else {
      mbarrier_expect(full, kStageBytes);
      const int all = product == kOutput ? Sizes::kHidden : Sizes::kIntermediate;
      const int k = role.split * (all / kSplit) + step * 2 * kChunk;
      copy_box(to, map, full, k, role.tile * kTileRows, policy);
      copy_box(to + kPanelBytes, map, full, k + kChunk, role.tile * kTileRows, policy);
    }
  }
};

// For one thread: brings the tokens, product after product, as soon as all CTAs have made them.
template <typename Sizes>
__device__ void produce_tokens(const Launch& p, Shared& sm, const Role& role) {
  constexpr uint16_t kBoth = (1 << kPair) - 1;
  Place<kSlots> place;
  place.parity = 1;
  wait_for_inputs();
  int num = 0;  // chunks until here
#pragma unroll 1
  for (int product = kOutput; product < p.num_products; ++product) {
    if (product != kOutput) await_product<Sizes>(p, product - 1);
    const int chunks = Sizes::chunks(product);
    const int first = product == kGateUp ? 0 : role.split * chunks;
#pragma unroll 1
    for (int i = 0; i < chunks; ++i, ++num, place.advance()) {
      const int slot = place.stage;
      mbarrier_wait(address(&sm.x_empty[slot]), place.parity);
      mbarrier_expect(address(&sm.x_full[slot]), kSlotBytes);
      if (num % kPair != role.rank) continue;
      if (num >= kSlots) mbarrier_wait(address(&sm.x_free[slot]), place.parity);
      copy_box_to(kBoth, address(sm.x[slot]), p.x[product], address(&sm.x_full[slot]),
                  (first + i) * kChunk, 0);
    }
  }
}

// For kTokens threads: the scales of the RMSNorms before the gates and before the next layer.
template <typename Sizes>
__device__ void make_scales(const Launch& p, Shared& sm, int token) {
  constexpr int kSums = 2 * Sizes::kCtas;  // of a token: of each warpgroup
  wait_for_inputs();
#pragma unroll 1
  for (int product = kGateUp; product < p.num_products; product += kQkv - kGateUp) {
    await_product<Sizes>(p, product - 1);
    const float* squares = p.layer.squares + (product == kGateUp ? 0 : kSums * kTokens) + token;
    float sum = 0.f;
#pragma unroll 16
    for (int i = 0; i < kSums; ++i) sum += __ldcg(squares + i * kTokens);
    sm.scales[token] = rsqrtf(sum / Sizes::kHidden + p.layer.eps);
    arrive_named(kScaled, kScaledThreads);
  }
}

}  // namespace sluice::products
