// The weights' way into an SM: a ring of stages in shared memory, which one warp keeps full with
// the rows that its CTA multiplies, product after product and layer after layer. It waits for room
// and for nothing else; so weights keep coming while the CTAs wait for each other.
//
// A stage is 16 rows by 1024 elements of k. Odd rows lie 64 bytes off the banks of even ones, so
// that eight lanes reading four times 16 bytes of two rows meet in no bank.
#pragma once

#include "hopper.cuh"
#include "persistent_decoder.cuh"

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
  int is_last;
  uint64_t full[kStages], empty[kStages];
};
static_assert(sizeof(Shared) <= 227 * 1024);

// A product's weight [outputs, k] or, gated, [2 * outputs, k].
struct Product {
  const void* weight;
  int outputs, k;
  bool gated;
  int index;  // counted through the layers

  __device__ int tile_outputs() const { return gated ? kTileRows / 2 : kTileRows; }
};

enum { kQkv, kOutput, kGateUp, kDown, kProducts };

__device__ __forceinline__ Product product_of(const PersistentDecoder& p, const void* weight,
                                              int layer, int which) {
  const int heads = p.q_heads * p.head_dim, index = layer * kProducts + which;
  switch (which) {
    case kQkv:
      return {weight, heads + 2 * p.kv_heads * p.head_dim, p.hidden, false, index};
    case kOutput:
      return {weight, p.hidden, heads, false, index};
    case kGateUp:
      return {weight, p.intermediate, p.hidden, true, index};
    default:
      return {weight, p.hidden, p.intermediate, false, index};
  }
}

// The outputs of a product that this CTA makes: of every product other CTAs have one more.
struct Share {
  int begin, end;

  static __device__ Share of(int outputs, int index) {
    const int ctas = gridDim.x, place = (blockIdx.x + index) % ctas;
    const int each = outputs / ctas, rest = outputs % ctas;
    const int begin = place * each + place * rest / ctas;
    return {begin, begin + each + (place + 1) * rest / ctas - place * rest / ctas};
  }
};

// The tiles of this CTA, in the order in which they are multiplied; a tile with many elements of k
// comes in several passes. For one warp.
class Tiles {
 public:
  Product product;
  int output, outputs;  // the first of the tile, and how many
  int first;            // element of k

  __device__ explicit Tiles(const PersistentDecoder& params) : p(params), lane(threadIdx.x % 32) {
    ahead = pointer(0);
    open();
  }

  __device__ bool is_there() const { return layer < p.num_layers; }

  __device__ void advance() {
    output += product.tile_outputs();
    if (output >= band_end()) {
      first += kPass;
      if (first >= product.k) {
        first = 0;
        band += kBand * product.tile_outputs();
        if (band >= share.end) return next_product();
      }
      output = band;
    }
    count();
  }

 private:
  static constexpr int kLayers = 32 / kProducts;  // whose pointers the lanes of a warp hold

  const PersistentDecoder& p;
  const int lane;
  const void *pointers, *ahead;  // a lane's, of these layers and of the next, asked for in time
  int layer = 0, which = 0, band;
  Share share;

  __device__ int band_end() const { return min(band + kBand * product.tile_outputs(), share.end); }
  __device__ void count() { outputs = min(band_end() - output, product.tile_outputs()); }

  __device__ const void* pointer(int from_layer) const {
    const PersistentLayer& weights = p.layers[min(from_layer + lane / kProducts, p.num_layers - 1)];
    const int of = lane % kProducts;
    return of == kQkv      ? weights.qkv
           : of == kOutput ? weights.output
           : of == kGateUp ? weights.gate_up
                           : weights.down;
  }

  __device__ void next_product() {
    if (++which == kProducts) {
      which = 0;
      ++layer;
    }
    open();
  }

  // The product's first tile; if this CTA has none, that of the next one that has.
  __device__ void open() {
    for (; is_there(); which = (which + 1) % kProducts, layer += which == 0) {
      if (which == 0 && layer % kLayers == 0) {
        pointers = ahead;
        ahead = pointer(layer + kLayers);
      }
      const auto of_lane = reinterpret_cast<uintptr_t>(pointers);
      const int from = layer % kLayers * kProducts + which;
      const uint32_t low = __shfl_sync(~0u, static_cast<uint32_t>(of_lane), from);
      const uint32_t high = __shfl_sync(~0u, static_cast<uint32_t>(of_lane >> 32), from);
      const auto* weight = reinterpret_cast<const void*>(static_cast<uintptr_t>(high) << 32 | low);
      product = product_of(p, weight, layer, which);
      share = Share::of(product.outputs, product.index);
      band = output = share.begin;
      first = 0;
      count();
      if (outputs > 0) return;
    }
  }
};

// One warp fills the ring; a lane copies a row. No more is under way at a time than keeps memory busy:
// what CTAs tell each other would wait behind the rest.
class Producer {
 public:
  __device__ Producer(const PersistentDecoder& params, Shared& shared)
      : sm(shared), lane(threadIdx.x % 32), policy(evict_first_policy()), tiles(params) {
    place.parity = 1;  // of a fresh barrier, this phase counts as ended
  }

  __device__ void run() {
#pragma unroll 1
    for (; tiles.is_there(); tiles.advance()) copy();
  }

 private:
  Shared& sm;
  const int lane;
  const uint64_t policy;
  Tiles tiles;
  Place<kStages> place, arrived;
  int under_way = 0;

  __device__ void copy() {
    const Product& product = tiles.product;
    const int row = product.gated ? lane % 8 + lane / 8 * product.outputs : lane;
    const bool has_row =
        lane < kTileRows && (product.gated ? lane % 8 : lane) < tiles.outputs;
    const char* from = static_cast<const char*>(product.weight) +
                       (static_cast<int64_t>(tiles.output + row) * product.k + tiles.first) * 2;
    const int rows = product.gated ? 2 * tiles.outputs : tiles.outputs;
    const int elements = min(kPass, product.k - tiles.first);
#pragma unroll 1
    for (int k = 0; k < elements; k += kSlice, place.advance()) {
      const int bytes = min(kSlice, elements - k) * 2;
      const uint32_t full = address(&sm.full[place.stage]);
      mbarrier_wait(address(&sm.empty[place.stage]), place.parity);
      if (under_way == kWindow) {
        mbarrier_wait(address(&sm.full[arrived.stage]), arrived.parity);
        arrived.advance();
      } else {
        ++under_way;
      }
      if (lane == 0) mbarrier_expect(full, rows * bytes);
      __syncwarp();
      if (has_row) {
        const uint32_t to = address(sm.stages[place.stage].rows) + row_offset(lane);
        copy_row(to, from + k * 2, bytes, full, policy);
      }
    }
  }
};

}  // namespace sluice::persistent
