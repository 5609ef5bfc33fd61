// GEMMs of dozens of tokens with weights of four bits, which become 16-bit floats in the
// registers that the tensor cores read; see tiled_linear.cuh.
//
// ldmatrix gives each thread one word of 32 inputs of a feature, and with it its share of the first
// operand of two products (widen.cuh).

#include "common/mma.cuh"
#include "gemm/tiled_linear.cuh"
#include "gemm/widen.cuh"

namespace sluice {
namespace tiled {
namespace {

constexpr int kWord = 32;                // inputs that share four words
constexpr int kBlocks = kChunk / kWord;  // of them in a chunk

// kScales: that are read for a chunk: 1, or kBlocks for groups of 32 or 64.
template <typename T, int kScales, int kWarpgroups>
struct Int4 {
  static constexpr int kGroups = kWarpgroups;
  using Out = T;
  using Row = uint8_t;
  using X = T;
  static constexpr CUtensorMapDataType kRowType = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  static constexpr CUtensorMapDataType kXType = std::is_same_v<T, __half>
                                                    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                    : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  static constexpr int kRowBytes = kChunk / 2;
  static constexpr int kXBytes = kChunk * sizeof(T);

  static __device__ __forceinline__ float scale(const QuantizedLinear&, int, int) { return 1.f; }

#ifdef SLUICE_HOPPER
  // The scales and zero points of a thread's two features in a chunk.
  struct Groups {
    uint32_t of[2][kScales];
  };

  // Reads those of one chunk after the other.
  class Loader {
   public:
    __device__ __forceinline__ Loader(const QuantizedLinear& p, int feature, int chunk)
        : p(p), chunk(chunk) {
      const int num_groups = p.k / p.group_size, first = chunk * kChunk / p.group_size;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int64_t row = min(feature + i * 8, p.features - 1);  // past the end nobody looks
        at[i] = static_cast<const uint32_t*>(p.scales) + row * num_groups + first;
      }
      left = (first + 1) * p.group_size / kChunk - chunk;
    }

    // They come from memory: sooner than the chunks that need them.
    __device__ __forceinline__ void prefetch(int end) const {
      const int num = (end * kChunk - 1) / p.group_size - chunk * kChunk / p.group_size;
      for (int i = 0; i <= num; i += 32) {
        prefetch_l2(at[0] + i);
        prefetch_l2(at[1] + i);
      }
    }

    __device__ __forceinline__ Groups operator()() {
      Groups groups;
#pragma unroll
      for (int block = 0; block < kScales; ++block) {
        const int group = kScales == 1 ? 0 : block >> (p.group_size > kWord);
        groups.of[0][block] = __ldg(at[0] + group);
        groups.of[1][block] = __ldg(at[1] + group);
      }
      if constexpr (kScales == 1) {
        if (--left > 0) return groups;
        left = p.group_size / kChunk;
      }
      const int groups_each = kScales == 1 ? 1 : kScales >> (p.group_size > kWord);
      at[0] += groups_each;
      at[1] += groups_each;
      return groups;
    }

   private:
    const QuantizedLinear& p;
    const int chunk;
    const uint32_t* at[2];
    int left;  // chunks of the group
  };

  // Two words each of a feature and the one 8 below: the first operands of four products.
  static __device__ __forceinline__ void widen(uint32_t (&a)[4][4], const uint32_t (&words)[4],
                                               const Groups& groups, int block) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int feature = i % 2, step = i / 2 * 2;
      const Int4Group<T> group(groups.of[feature][kScales == 1 ? 0 : block + i / 2]);
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        a[step + pair / 2][pair % 2 * 2 + feature] = group.widen(words[i], pair);
      }
    }
  }

  template <int kTokens>
  static __device__ __forceinline__ void multiply(float (&sum)[kTokens / 2],
                                                  const QuantizedLinear& p,
                                                  Shared<Int4, kTokens>& sm, const Work& work,
                                                  int feature) {
    // While products run, registers allowing, the operands of the next ones are made.
    constexpr int kAhead = kTokens <= 64 ? 1 : 0;
    const int group = threadIdx.x / 128, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    const int row = warp * 16 + lane % 16;  // whose words this lane finds for ldmatrix
    const uint32_t words_at = address(sm.stages[0].weight[group]) + row * kRowBytes +
                              (lane / 16 ^ row / 2 % 4) * 16;  // as the copy engine swizzles
    const uint64_t x_at = tile_descriptor(address(sm.stages[0].x[0]), 16);
    Loader load(p, feature + warp * 16 + lane / 4, work.begin);
    load.prefetch(work.end);
    Groups next = load();
    uint32_t a[kAhead + 1][4][4];
    Place<Shared<Int4, kTokens>::kStages> place, last;
    for (int chunk = work.begin; chunk < work.end; ++chunk) {
      const Groups groups = next;
      if (chunk + 1 < work.end) next = load();
      mbarrier_wait(address(&sm.full[place.stage]), place.parity);
      const uint32_t stage = place.stage * sizeof(typename Shared<Int4, kTokens>::Stage);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t words[4];
        ldmatrix_x4(words, (words_at ^ half * 32) + stage);
        wgmma_wait<kAhead>();
        if (half == 1 && chunk > work.begin && lane == 0) {
          mbarrier_arrive(address(&sm.empty[last.stage]));
        }
        auto& operand = a[half * kAhead];
        widen(operand, words, groups, half * 2);
        pin(sum);
        wgmma_fence();
        const uint64_t x = x_at + (stage + half * kTokens * kPanel) / 16;
#pragma unroll
        for (int step = 0; step < 4; ++step) wgmma_rows<T>(sum, operand[step], x + step * 2);
        wgmma_commit();
      }
      last = place;
      place.advance();
    }
    wgmma_wait<0>();
    pin(sum);
  }
#endif
};

// More than 64 tokens take the registers of one CTA an SM.
template <typename T>
cudaError_t of_groups(const QuantizedLinear& p, int split, cudaStream_t stream) {
  if (p.group_size % kChunk == 0) return dispatch<Int4<T, 1, 2>, Int4<T, 1, 4>>(p, split, stream);
  return dispatch<Int4<T, kBlocks, 2>, Int4<T, kBlocks, 4>>(p, split, stream);
}

}  // namespace
}  // namespace tiled

cudaError_t tiled_int4_linear(const QuantizedLinear& linear, int split, bool bf16,
                              cudaStream_t stream) {
  if (linear.tokens == 0) return cudaSuccess;
  return bf16 ? tiled::of_groups<__nv_bfloat16>(linear, split, stream)
              : tiled::of_groups<__half>(linear, split, stream);
}

}  // namespace sluice
