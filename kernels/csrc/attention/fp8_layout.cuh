// Where the keys and values of 16 tokens in FP8 lie in shared memory, and which of them each lane
// of a warp takes for mma.m16n8k16. Plain arithmetic, so that it can be tested without a GPU.
//
// A lane has group g = lane / 4 and place t = lane % 4. Terms of a product may be added up in any
// order, and columns may have any names, as long as both sides agree; this order lets a lane read
// vectors where the natural one would have it read bytes:
//
//   scores, term k of step s      k = 2t, 2t+1, 2t+8, 2t+9: four dims in a row, of lane t's vector
//   scores, rows g and g + 8      tokens 4 (g / 2) + g % 2 and two further, so that ...
//   values, terms as above        ... lane t takes four tokens in a row
//   values, rows g and g + 8      two dims in a row of lane g's vector (of 4 or 8)
#pragma once

#ifdef __CUDACC__
#define SLUICE_ANYWHERE static __host__ __device__ __forceinline__ constexpr
#else
#define SLUICE_ANYWHERE static constexpr
#endif

namespace sluice {

template <int D>
struct Fp8Layout {
  static constexpr bool kWide = D % 64 == 0;
  static constexpr int kRowBytes = D <= 64 ? 64 : D <= 128 ? 128 : 256;
  static constexpr int kTileBytes = 16 * kRowBytes;
  static constexpr int kKeyBytes = kWide ? 16 : 8;   // a lane's vector of a key
  static constexpr int kValueBytes = kWide ? 8 : 4;  // and of a value
  static constexpr int kKeyChunks = D / (4 * kKeyBytes);
  static constexpr int kValueChunks = D / (8 * kValueBytes);

  // Byte `at` of a row: pairs of 16-byte pieces change places, so that rows which are read together
  // fall into different banks.
  SLUICE_ANYWHERE int place(int row, int at) {
    const int low = row >> 2 & 1, high = (row ^ row >> 3) & 1;
    const int turn = D <= 64 ? low : high << 1 | low;
    return row * kRowBytes + (((at >> 5) ^ turn) << 5) + (at & 31);
  }

  // The token of row lane / 4 + 8 * half of the scores.
  SLUICE_ANYWHERE int key_row(int half, int lane) {
    return lane / 8 * 4 + half * 2 + lane / 4 % 2;
  }
  SLUICE_ANYWHERE int key_at(int chunk, int lane) {
    return chunk * 4 * kKeyBytes + lane % 4 * kKeyBytes;
  }

  // The first of the two neighbouring dims in a query operand of a step; high: of terms 8 to 15.
  SLUICE_ANYWHERE int query_dim(int step, int high, int lane) {
    constexpr int kSteps = kKeyBytes / 4;  // of a vector
    return key_at(step / kSteps, lane) + step % kSteps * 4 + high * 2;
  }

  // The tokens of terms 2t, 2t+1, 2t+8 and 2t+9.
  SLUICE_ANYWHERE int value_row(int i, int lane) { return lane % 4 * 4 + i; }
  SLUICE_ANYWHERE int value_at(int chunk, int lane) {
    return chunk * 8 * kValueBytes + lane / 4 * kValueBytes;
  }

  // The dim of row lane / 4 of an output tile; that of row lane / 4 + 8 is the next.
  SLUICE_ANYWHERE int column(int tile, int lane) {
    constexpr int kTiles = kValueBytes / 2;  // of a vector
    return value_at(tile / kTiles, lane) + tile % kTiles * 2;
  }
};

}  // namespace sluice

#undef SLUICE_ANYWHERE
