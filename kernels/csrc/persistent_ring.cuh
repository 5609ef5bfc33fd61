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
constexpr int kTileRows = 16;
constexpr int kSlice = 1024;  // elements of k in a stage
constexpr int kSliceBytes = kSlice * 2;
constexpr int kOddRows = kTileRows / 2 * kSliceBytes + 64;  // where they begin
constexpr int kStages = 6;
constexpr int kPassSlices = 4;
constexpr int kPass = kPassSlices * kSlice;  // elements of k for which all rows are multiplied
constexpr int kNormPasses = 2;               // as many elements a norm can have
constexpr int kMostRows = 512;               // of a CTA in one product
constexpr int kMostGroup = 8;                // query heads of a KV head

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
    struct {
      uint16_t x[kWarps][kPassSlices * kSlice / kWarps];
      float sums[kWarps][kMostRows];
    } product;
    struct {
      float out[kWarps][kMostGroup * 128];
      float2 stats[kWarps][kMostGroup];
      int is_last;
    } attention;
  };
  alignas(16) Scratch scratch;
  float squares[kWarps];
  uint64_t full[kStages], empty[kStages];
};

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

  static __device__ Share of(const Product& product) {
    const int ctas = gridDim.x, place = (blockIdx.x + product.index) % ctas;
    const int each = product.outputs / ctas, rest = product.outputs % ctas;
    const int begin = place * each + place * rest / ctas;
    return {begin, begin + each + (place + 1) * rest / ctas - place * rest / ctas};
  }
  __device__ int size() const { return end - begin; }
};

// One warp fills the ring; a lane copies a row.
class Producer {
 public:
  __device__ Producer(const PersistentDecoder& params, Shared& shared)
      : p(params), sm(shared), lane(threadIdx.x % 32), policy(evict_first_policy()) {
    place.parity = 1;  // of a fresh barrier, this phase counts as ended
  }

  __device__ void run() {
    const void* weights[kProducts];
    load(weights, 0);
#pragma unroll 1
    for (int layer = 0; layer < p.num_layers; ++layer) {
      const void* next[kProducts];  // asked for long before it is needed
      load(next, min(layer + 1, p.num_layers - 1));
#pragma unroll
      for (int i = 0; i < kProducts; ++i) {
        stream(product_of(p, weights[i], layer, i));
      }
#pragma unroll
      for (int i = 0; i < kProducts; ++i) weights[i] = next[i];
    }
  }

 private:
  const PersistentDecoder& p;
  Shared& sm;
  const int lane;
  const uint64_t policy;
  Place<kStages> place;

  __device__ void load(const void* (&weights)[kProducts], int layer) const {
    const PersistentLayer& from = p.layers[layer];
    weights[kQkv] = from.qkv;
    weights[kOutput] = from.output;
    weights[kGateUp] = from.gate_up;
    weights[kDown] = from.down;
  }

  __device__ void stream(const Product& product) {
    const Share share = Share::of(product);
    const int step = product.tile_outputs();
    const int row = product.gated ? lane % 8 + lane / 8 * product.outputs : lane;
    const int own = product.gated ? lane % 8 : lane;  // which output of the tile
#pragma unroll 1
    for (int first = 0; first < product.k; first += kPass) {
      const int end = min(first + kPass, product.k);
#pragma unroll 1
      for (int output = share.begin; output < share.end; output += step) {
        const int outputs = min(share.end - output, step);
        const bool is_there = lane < kTileRows && own < outputs;
        const int rows = product.gated ? 2 * outputs : outputs;
        const char* from = static_cast<const char*>(product.weight) +
                           static_cast<int64_t>(output + row) * product.k * 2;
#pragma unroll 1
        for (int k = first; k < end; k += kSlice) {
          const int bytes = min(kSlice, product.k - k) * 2;
          const uint32_t full = address(&sm.full[place.stage]);
          mbarrier_wait(address(&sm.empty[place.stage]), place.parity);
          if (lane == 0) mbarrier_expect(full, rows * bytes);
          __syncwarp();
          if (is_there) {
            copy_row(address(sm.stages[place.stage].rows) + row_offset(lane), from + k * 2, bytes,
                     full, policy);
          }
          place.advance();
        }
      }
    }
  }
};

}  // namespace sluice::persistent
