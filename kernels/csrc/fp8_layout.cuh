// Where the keys and values of 16 tokens in FP8 lie in shared memory, and which of them each lane of
// a warp takes for mma.m16n8k16. Plain arithmetic, so that it can be tested without a GPU.
//
// A lane has group g = lane / 4 and place t = lane % 4. Terms of a product may be added up in any
// order, and columns may have any names, as long as both sides agree; this order lets a lane read
// vectors where the natural one would have it read bytes:
//
//   scores, term k of step s      k = 2t, 2t+1, 2t+8, 2t+9: four dims in a row, of lane t's vector
//   scores, column n of tile j    token 4 (n / 2) + 2j + n % 2, so that lane t holds four in a row
//   values, term k                those four tokens
//   values, column n of tile i    dim n of the i-th run of 8 (in vectors of 4 or 8 a lane)
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

  // The key of column lane / 4 in tile `half` of the scores.
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

  // The token whose score is element i % 2 of this lane's tile i / 2.
  SLUICE_ANYWHERE int token(int i, int lane) { return lane % 4 * 4 + i; }

  SLUICE_ANYWHERE int value_row(int i, int lane) { return lane % 4 * 4 + i; }
  SLUICE_ANYWHERE int value_at(int chunk, int lane) {
    return chunk * 8 * kValueBytes + lane / 4 * kValueBytes;
  }

  // The dim of element e of this lane's output tile.
  SLUICE_ANYWHERE int column(int tile, int e, int lane) {
    return value_at(tile / kValueBytes, (lane % 4 * 2 + e) * 4) + tile % kValueBytes;
  }
};

}  // namespace sluice

#undef SLUICE_ANYWHERE
