// The weights' way into an SM: a ring of stages in shared memory, which one warp keeps full with
// the rows that its CTA multiplies, product after product and layer after layer. It waits for room
// and for nothing else; so weights keep coming while the CTAs wait for each other.
//
// Rows come in bands of tiles. SMs do not all get the same part of the memory's bandwidth, so the
// bands of qkv and of the gates are claimed, a little ahead of time, by whoever has room for one.
// The other products' are too few, or have too many bytes: they are dealt out evenly. It makes no
// difference to a row who makes it.
//
// A stage is 16 rows by 1024 elements of k. Odd rows lie 64 bytes off the banks of even ones, so
// that eight lanes reading four times 16 bytes of two rows meet in no bank.
#pragma once

#include "common/exchange.cuh"
#include "common/grid_counts.cuh"
#include "common/hopper.cuh"
#include "decoder/persistent_decoder.cuh"

namespace sluice::persistent {

constexpr int kWarps = 8;  // that multiply
constexpr int kConsumers = kWarps * 32;
constexpr int kThreads = kConsumers + 128;  // registers move between whole warpgroups
// Of a thread: a CTA can have no more than 168 for each of its threads.
constexpr int kConsumerRegisters = 216, kProducerRegisters = 72;
static_assert(kConsumers * kConsumerRegisters + 128 * kProducerRegisters <= kThreads * 168);
constexpr int kTileRows = 16;
constexpr int kSlice = 1024;  // elements of k in a stage
constexpr int kSliceBytes = kSlice * 2;
constexpr int kOddRows = kTileRows / 2 * kSliceBytes + 64;  // where they begin
constexpr int kStages = 6;
constexpr int kPassSlices = 4;
constexpr int kPass = kPassSlices * kSlice;  // elements of k for which some tiles are multiplied
constexpr int kBand = 4;                     // of so many tiles are the sums kept
constexpr int kWindow = 2;                   // stages that are under way at a time
constexpr int kMostTokens = kMostPersistentTokens;
constexpr int kMostGroup = 8;  // query heads of a KV head

struct Stage {
  uint8_t rows[kOddRows + kTileRows / 2 * kSliceBytes];
};

// Where row r begins in a stage.
__device__ __forceinline__ uint32_t row_offset(int r) {
  return r / 2 * kSliceBytes + (r & 1) * kOddRows;
}

// Of a token's attention: its KV head and a range of its keys.
struct Unit {
  int index, token, head;
  int len;            // of its sequence, up to the token
  int split, splits;  // which part of the token's keys it has
  int last, num;      // its last tile and how many it has
  int64_t position, slot;

  // The tile that a warp takes in a round, the newest first; -1: none.
  __device__ __forceinline__ int tile(int round, int warp) const {
    const int nth = round * kWarps + warp;
    return nth < num ? last - nth : -1;
  }
};

struct Shared {
  Stage stages[kStages];
  union Scratch {
    float sums[kBand][kWarps][kTileRows * kMostTokens];
    float attended[kWarps][kMostGroup * 128];
  };
  alignas(16) Scratch scratch;
  float2 stats[kWarps][kMostGroup];  // of attention
  float scales[kMostTokens];         // of RMSNorms
  int unit_ends[kMostTokens];        // of the tokens' parts of attention
  int num_units;
  Unit unit;               // that is being worked on
  int64_t places[kWarps];  // of the first keys of its warps, in the caches
  int2 bands[kStages];     // from and to which output; (-1, -1): the product is over
  int layers;              // that all CTAs have ended
  uint64_t full[kStages], empty[kStages], ended;
};
static_assert(sizeof(Shared) <= 227 * 1024);

// A product's weight [outputs, k] or, gated, [2 * outputs, k].
struct Product {
  const void* weight;
  int outputs, k;
  bool gated;

  __device__ int tile_outputs() const { return gated ? kTileRows / 2 : kTileRows; }
  __device__ int passes() const { return (k + kPass - 1) / kPass; }
  // A pass needs other elements of the tokens: not for every tile.
  __device__ int band_outputs() const { return tile_outputs() * (passes() > 1 ? kBand : 1); }
};

enum { kQkv, kOutput, kGateUp, kDown, kProducts };

__device__ __forceinline__ Product product_of(const PersistentDecoder& p, const void* weight,
                                              int which) {
  const int heads = p.q_heads * p.head_dim;
  switch (which) {
    case kQkv:
      return {weight, heads + 2 * p.kv_heads * p.head_dim, p.hidden, false};
    case kOutput:
      return {weight, p.hidden, heads, false};
    case kGateUp:
      return {weight, p.intermediate, p.hidden, true};
    default:
      return {weight, p.hidden, p.intermediate, false};
  }
}

// The elements of a row that this CTA makes where none are claimed.
struct Share {
  int begin, end;

  static __device__ Share of(int elements) {
    const int64_t cta = blockIdx.x;
    return {static_cast<int>(cta * elements / gridDim.x),
            static_cast<int>((cta + 1) * elements / gridDim.x)};
  }
};

// An exchange of a layer; it begins with the counts of bands of qkv and of gates that were claimed.
__device__ __forceinline__ uint8_t* claims_of(const PersistentDecoder& p, int layer) {
  return p.exchange + layer % kExchanges * p.exchange_bytes;
}

// One warp fills the ring; a lane copies a row. No more is under way at a time than keeps memory
// busy: what CTAs tell each other would wait behind the rest.
class Producer {
 public:
  __device__ Producer(const PersistentDecoder& params, Shared& shared)
      : p(params), sm(shared), lane(threadIdx.x % 32), policy(evict_first_policy()) {
    place.parity = 1;  // of a fresh barrier, this phase counts as ended
  }

  __device__ void run() {
    const void *pointers = nullptr, *ahead = pointer(0);
#pragma unroll 1
    for (int layer = 0; layer < p.num_layers; ++layer) {
      if (layer % kLayers == 0) {
        pointers = ahead;
        ahead = pointer(layer + kLayers);
      }
#pragma unroll 1
      for (int which = 0; which < kProducts; ++which) {
        product = product_of(p, of_lane(pointers, layer % kLayers * kProducts + which), which);
        if (which == kQkv || which == kGateUp) {
          // Counts of this layer are empty again.
          await_shared(address(&sm.layers), layer - 1);
          claim_bands(reinterpret_cast<int*>(claims_of(p, layer)) + (which == kGateUp));
        } else {
          deal_bands();
        }
        end_product();
      }
    }
  }

 private:
  static constexpr int kLayers = 32 / kProducts;  // whose pointers the lanes of a warp hold
  static constexpr int kClaimAhead = 2;           // stages

  const PersistentDecoder& p;
  Shared& sm;
  const int lane;
  const uint64_t policy;
  Product product;
  Place<kStages> place, arrived;  // the next stage, and the first that may be under way
  int behind = 0, under_way = 0;  // stages from there on, and those of them with weights
  unsigned empty_ones = 0;        // stages without, as bits

  __device__ const void* pointer(int from_layer) const {
    const PersistentLayer& weights = p.layers[min(from_layer + lane / kProducts, p.num_layers - 1)];
    const int of = lane % kProducts;
    return of == kQkv      ? weights.qkv
           : of == kOutput ? weights.output
           : of == kGateUp ? weights.gate_up
                           : weights.down;
  }

  static __device__ const void* of_lane(const void* pointer, int from) {
    const auto bits = reinterpret_cast<uintptr_t>(pointer);
    const uint32_t low = __shfl_sync(~0u, static_cast<uint32_t>(bits), from);
    const uint32_t high = __shfl_sync(~0u, static_cast<uint32_t>(bits >> 32), from);
    return reinterpret_cast<const void*>(static_cast<uintptr_t>(high) << 32 | low);
  }

  // The first band is everybody's own.
  __device__ void claim_bands(int* claims) {
    const int each = product.band_outputs();
    int next = 0;  // of lane 0
#pragma unroll 1
    for (int first = blockIdx.x * each; first < product.outputs;
         first = (gridDim.x + __shfl_sync(~0u, next, 0)) * each) {
      copy_band(first, min(first + each, product.outputs), [&] {
        if (lane == 0) next = claim(claims);
      });
    }
  }

  __device__ void deal_bands() {
    const Share share = Share::of(product.outputs);
    const int each = product.band_outputs();
#pragma unroll 1
    for (int first = share.begin; first < share.end; first += each) {
      copy_band(first, min(first + each, share.end), [] {});
    }
  }

  // near_end() is called some stages before the last.
  template <typename NearEnd>
  __device__ void copy_band(int begin, int end, NearEnd&& near_end) {
#pragma unroll 1
    for (int first = 0; first < product.k; first += kPass) {
      const int elements = min(kPass, product.k - first);
#pragma unroll 1
      for (int output = begin; output < end; output += product.tile_outputs()) {
        const bool is_last =
            first + kPass >= product.k && output + product.tile_outputs() >= end;
        const int near = max(elements - kClaimAhead * kSlice, 0) / kSlice * kSlice;
#pragma unroll 1
        for (int k = 0; k < elements; k += kSlice) {
          if (is_last && k == near) near_end();
          copy_stage({begin, end}, output, min(end - output, product.tile_outputs()), first + k,
                     min(kSlice, elements - k) * 2);
        }
      }
    }
  }

  __device__ void copy_stage(int2 band, int output, int outputs, int k, int bytes) {
    const int row = product.gated ? lane % 8 + lane / 8 * product.outputs : lane;
    const bool has_row = lane < kTileRows && (product.gated ? lane % 8 : lane) < outputs;
    const auto* from = static_cast<const char*>(product.weight) +
                       (static_cast<int64_t>(output + row) * product.k + k) * 2;
    const uint32_t full = address(&sm.full[place.stage]);
    await_room(false);
    if (lane == 0) {
      sm.bands[place.stage] = band;
      mbarrier_expect(full, (product.gated ? 2 : 1) * outputs * bytes);
    }
    __syncwarp();
    if (has_row) {
      const uint32_t to = address(sm.stages[place.stage].rows) + row_offset(lane);
      copy_row(to, from, bytes, full, policy);
    }
    place.advance();
  }

  __device__ void end_product() {
    await_room(true);
    if (lane == 0) {
      sm.bands[place.stage] = {-1, -1};
      mbarrier_arrive(address(&sm.full[place.stage]));
    }
    __syncwarp();
    place.advance();
  }

  // Returns when the next stage is free and, unless it stays empty, few enough are under way.
  __device__ void await_room(bool stays_empty) {
    mbarrier_wait(address(&sm.empty[place.stage]), place.parity);
    while (behind == kStages || (!stays_empty && under_way == kWindow)) {
      if (!(empty_ones >> arrived.stage & 1)) {
        mbarrier_wait(address(&sm.full[arrived.stage]), arrived.parity);
        --under_way;
      }
      arrived.advance();
      --behind;
    }
    ++behind;
    under_way += !stays_empty;
    const unsigned bit = 1u << place.stage;
    empty_ones = stays_empty ? empty_ones | bit : empty_ones & ~bit;
  }
};

}  // namespace sluice::persistent
