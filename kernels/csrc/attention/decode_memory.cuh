// What a CTA of the decode kernel keeps in shared memory, and the kinds of the kernel.
#pragma once

#include "attention/decode_line.cuh"

namespace sluice {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kTile = kDecodeTile;
constexpr int kWarpTokens = kTile / kWarps;
static_assert(kWarpTokens == 16);
constexpr int kTileRows = 8;  // rows of an item that one MMA serves

template <int D, int kStageBytes, int kStages>
struct Shared {
  static constexpr int kStride = D + 4;  // the rows 2t that lanes write together lie 8 banks apart
  uint8_t ring[kWarps][kStages][kStageBytes];  // K, V, and queries if they come this way
  Cursor tiles[kWarps][kStages];               // whose they are
  float out[kWarps][kTileRows][kStride];       // of each warp; then its max and sum
  Cursor first;                                // where this CTA started
  uint64_t results;  // barrier: counts what comes from the other CTAs of the cluster
};

// What a kernel can do beyond plain attention. Code that is not there counts, see above.
enum class Extras {
  kNone,
  kScores,  // soft cap or ALiBi
  kShared,  // results for shared keys, found by shared_prefix, are merged in
  kNew,     // queries, new keys and values are rotated and stored here, not by a kernel before
};

}  // namespace sluice
