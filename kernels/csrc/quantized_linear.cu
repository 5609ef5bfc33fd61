// Matrix products of few tokens with weights of eight or four bits. As in skinny_linear.cu the weight
// streams from HBM once, straight into the registers of the tensor-core instruction that uses it,
// with a step between that makes 16-bit floats of it.
//
// A CTA stays on its SM and takes tiles of 16 output features in turn; its warps share the sum over
// k. The loads of the next steps, also of the next tile, are under way while one is computed, so
// that memory never waits for the end of a tile.
//
// A thread takes 16 bytes in a row of a feature, 16 or 32 weights, and the same elements of x. The
// weights become floats two at a time, by moving bits into place: exponents come out too small by a
// constant factor (FP8), or integers as the mantissa of a power of two (INT4).

#include "dependent_launch.cuh"
#include "mma.cuh"
#include "quantized_linear.cuh"
#include "vector.cuh"

#ifndef SLUICE_QUANTIZED_WARPS
#define SLUICE_QUANTIZED_WARPS 16
#define SLUICE_QUANTIZED_UNROLL 2
#define SLUICE_QUANTIZED_STAGES 3
#endif

namespace sluice {
namespace {

constexpr int kWarps = SLUICE_QUANTIZED_WARPS;
constexpr int kThreads = kWarps * 32;
constexpr int kCtasPerSm = 16 / kWarps;
constexpr int kUnroll = SLUICE_QUANTIZED_UNROLL;  // chunks of a warp in a step
constexpr int kStages = SLUICE_QUANTIZED_STAGES;  // steps in registers: one computed, others loading
constexpr int kFeatures = 16;                     // of a tile

template <typename T>
struct Pair;  // two 16-bit floats in a word

template <>
struct Pair<__nv_bfloat16> {
  static constexpr int kFp8Shift = 4;
  static constexpr uint32_t kFp8Bits = 0x07f007f0;
  static constexpr uint32_t kFp8Factor = 0x7b807b80;  // 2^120
  static constexpr uint32_t kInteger = 0x43004300;    // 128, whose last bit is worth 1
  static constexpr float kIntegerBase = 128.f;
  static constexpr uint32_t kOnes = 0x3f803f80;
  using Two = __nv_bfloat162;
};

template <>
struct Pair<__half> {
  static constexpr int kFp8Shift = 1;
  static constexpr uint32_t kFp8Bits = 0x3f803f80;
  static constexpr uint32_t kFp8Factor = 0x5c005c00;  // 2^8
  static constexpr uint32_t kInteger = 0x64006400;    // 1024
  static constexpr float kIntegerBase = 1024.f;
  static constexpr uint32_t kOnes = 0x3c003c00;
  using Two = __half2;
};

template <typename T>
__device__ __forceinline__ uint32_t times(uint32_t a, uint32_t b) {
  using Two = typename Pair<T>::Two;
  Two v = __hmul2(reinterpret_cast<Two&>(a), reinterpret_cast<Two&>(b));
  return reinterpret_cast<uint32_t&>(v);
}

template <typename T>
__device__ __forceinline__ uint32_t plus(uint32_t a, uint32_t b) {
  using Two = typename Pair<T>::Two;
  Two v = __hadd2(reinterpret_cast<Two&>(a), reinterpret_cast<Two&>(b));
  return reinterpret_cast<uint32_t&>(v);
}

template <typename T>
__device__ __forceinline__ uint32_t minus(uint32_t a, uint32_t b) {
  using Two = typename Pair<T>::Two;
  Two v = __hsub2(reinterpret_cast<Two&>(a), reinterpret_cast<Two&>(b));
  return reinterpret_cast<uint32_t&>(v);
}

__device__ __forceinline__ uint32_t word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

__device__ __forceinline__ uint4 load_once(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

template <typename T>
struct Fp8 {
  static constexpr int kChunk = 64;  // elements of k that a warp takes at a time
  static constexpr bool kScalesChunks = false;
  static constexpr bool kHasZeros = false;

  struct Group {};
  static __device__ __forceinline__ Group group(const QuantizedLinear&, int, int) { return {}; }

  // Eight elements, the i-th eight of a thread's sixteen.
  static __device__ __forceinline__ void widen(uint32_t (&out)[4], const uint4& v, int i, Group) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      // Bytes 0 and 1, or 2 and 3, into the upper bytes of the two halves.
      const uint32_t spread = __byte_perm(word(v, 2 * i + j / 2), 0, j % 2 ? 0x3424 : 0x1404);
      const uint32_t small = (spread & 0x80008000) | ((spread >> Pair<T>::kFp8Shift) & Pair<T>::kFp8Bits);
      out[j] = times<T>(small, Pair<T>::kFp8Factor);
    }
  }

  static __device__ __forceinline__ float scale(const QuantizedLinear& p, int feature) {
    return static_cast<const float*>(p.scales)[feature];
  }
};

// With a scale for each block: the sum over a chunk, which lies within one, is multiplied with it.
template <typename T>
struct Fp8Blocks {
  static constexpr int kChunk = 64;
  static constexpr bool kScalesChunks = true;
  static constexpr bool kHasZeros = false;

  using Group = float;
  static __device__ __forceinline__ Group group(const QuantizedLinear& p, int feature, int k) {
    const int columns = (p.k + p.group_size - 1) / p.group_size;
    const int64_t row = feature / p.block_rows;
    return __ldg(static_cast<const float*>(p.scales) + row * columns + k / p.group_size);
  }

  static __device__ __forceinline__ void widen(uint32_t (&out)[4], const uint4& v, int i, Group) {
    Fp8<T>::widen(out, v, i, {});
  }

  static __device__ __forceinline__ float chunk_scale(Group group) { return group; }
  static __device__ __forceinline__ float scale(const QuantizedLinear&, int) { return 1.f; }
};

// Groups of any multiple of 32: the threads of a warp may be in different ones.
template <typename T>
struct Int4 {
  static constexpr int kChunk = 128;
  static constexpr bool kScalesChunks = false;
  static constexpr bool kHasZeros = false;

  using Group = uint32_t;  // scale and zero
  static __device__ __forceinline__ Group group(const QuantizedLinear& p, int feature, int k) {
    const int64_t row = static_cast<int64_t>(feature) * (p.k / p.group_size);
    return __ldg(static_cast<const uint32_t*>(p.scales) + row + k / p.group_size);
  }

  // Eight elements, the i-th eight of a thread's 32: one word.
  static __device__ __forceinline__ void widen(uint32_t (&out)[4], const uint4& v, int i,
                                               Group group) {
    const uint32_t scale = __byte_perm(group, group, 0x1010);
    const uint32_t zero = plus<T>(__byte_perm(group, group, 0x3232), Pair<T>::kInteger);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t whole = ((word(v, i) >> 4 * j) & 0x000f000f) | Pair<T>::kInteger;
      out[j] = times<T>(minus<T>(whole, zero), scale);
    }
  }

  static __device__ __forceinline__ float scale(const QuantizedLinear&, int) { return 1.f; }
};

// Groups of whole chunks. What an integer is too large by, its base and its zero, is taken off the
// sum over a chunk, as so many times the sum of x.
template <typename T>
struct Int4Chunks {
  static constexpr int kChunk = 128;
  static constexpr bool kScalesChunks = true;
  static constexpr bool kHasZeros = true;

  using Group = uint32_t;  // scale and zero
  static __device__ __forceinline__ Group group(const QuantizedLinear& p, int feature, int k) {
    return Int4<T>::group(p, feature, k);
  }

  static __device__ __forceinline__ void widen(uint32_t (&out)[4], const uint4& v, int i, Group) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      out[j] = ((word(v, i) >> 4 * j) & 0x000f000f) | Pair<T>::kInteger;
    }
  }

  static __device__ __forceinline__ float half(Group group, int which) {
    const uint16_t bits = which ? group >> 16 : group;
    return to_float(reinterpret_cast<const T&>(bits));
  }
  static __device__ __forceinline__ float chunk_scale(Group group) { return half(group, 0); }
  static __device__ __forceinline__ float chunk_zero(Group group) {
    return half(group, 1) + Pair<T>::kIntegerBase;
  }
  static __device__ __forceinline__ float scale(const QuantizedLinear&, int) { return 1.f; }
};

// Which feature row 0..15 of a tile is: they follow each other or, gated, 8 gates and their 8 ups.
__device__ __forceinline__ int feature_of(int tile, int row, const QuantizedLinear& p) {
  if (!p.gated) return tile * kFeatures + row;
  return (row < 8 ? 0 : p.features / 2) + tile * 8 + row % 8;
}

// total(row, token): the finished sum of a feature of the tile, rounded to T.
template <typename T, typename Total>
__device__ __forceinline__ void store_tile(const QuantizedLinear& p, int tile, Total total) {
  const int rows = p.gated ? 8 : kFeatures;
  const int row = threadIdx.x % rows, token = threadIdx.x / rows;
  if (token >= p.tokens) return;
  float value = total(row, token);
  if (p.gated) {
    const float silu = rounded<T>(value / (1.f + __expf(-value)));
    value = silu * total(row + 8, token);
  }
  const int64_t width = p.gated ? p.features / 2 : p.features;
  static_cast<T*>(p.out)[token * width + tile * rows + row] = from_float<T>(value);
}

// Where a warp is: a tile, and the first of its chunks there.
struct Cursor {
  int tile, chunk;

  // To the next step; true at the end of the tile.
  __device__ __forceinline__ bool advance(int num_chunks) {
    chunk += kWarps * kUnroll;
    if (chunk - static_cast<int>(threadIdx.x / 32) < num_chunks) return false;
    chunk = threadIdx.x / 32;
    tile += gridDim.x;
    return true;
  }
};

template <typename T, template <typename> typename Format, int kGroups>  // groups of 8 tokens
__global__ void __launch_bounds__(kThreads, kCtasPerSm)
    quantized_linear_kernel(const QuantizedLinear p) {
  using F = Format<T>;
  constexpr int kElements = F::kChunk / 4;  // of a thread in a chunk
  struct Weights {
    uint4 low[kUnroll], high[kUnroll];
    typename F::Group low_group[kUnroll], high_group[kUnroll];
  };
  __shared__ float partial[2][kWarps][kFeatures][kGroups * 8 + 1];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const int num_chunks = p.k / F::kChunk, num_tiles = p.features / kFeatures;
  const int64_t row_bytes = static_cast<int64_t>(num_chunks) * 64;
  const char* weight = static_cast<const char*>(p.weight) + t * 16;

  auto load = [&](Weights& w, const Cursor& at) {
    if (at.tile >= num_tiles) return;
    const int low = feature_of(at.tile, g, p), high = feature_of(at.tile, g + 8, p);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int chunk = at.chunk + u * kWarps;
      if (chunk >= num_chunks) break;
      w.low[u] = load_once(weight + low * row_bytes + chunk * 64);
      w.high[u] = load_once(weight + high * row_bytes + chunk * 64);
      const int k = chunk * F::kChunk + t * kElements;
      w.low_group[u] = F::group(p, low, k);
      w.high_group[u] = F::group(p, high, k);
    }
  };

  float sum[kGroups][4] = {};
  const T* x = static_cast<const T*>(p.x) + t * kElements;
  auto compute = [&](const Weights& w, int first) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int chunk = first + u * kWarps;
      if (chunk >= num_chunks) break;
      float of_chunk[F::kScalesChunks ? kGroups : 1][4] = {};
      float of_x[F::kHasZeros ? kGroups : 1][4] = {};
#pragma unroll
      for (int i = 0; i < kElements / 8; ++i) {
        uint32_t a[4], b[4];
        F::widen(a, w.low[u], i, w.low_group[u]);
        F::widen(b, w.high[u], i, w.high_group[u]);
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          const int token = group * 8 + g;
          uint4 v = make_uint4(0, 0, 0, 0);
          if (token < p.tokens) {
            v = *reinterpret_cast<const uint4*>(x + token * p.x_stride + chunk * F::kChunk + i * 8);
          }
          float(&to)[4] = F::kScalesChunks ? of_chunk[F::kScalesChunks ? group : 0] : sum[group];
          Half<T>::mma(to, {a[0], b[0], a[1], b[1]}, v.x, v.y);
          Half<T>::mma(to, {a[2], b[2], a[3], b[3]}, v.z, v.w);
          if constexpr (F::kHasZeros) {
            constexpr uint32_t kOnes = Pair<T>::kOnes;
            Half<T>::mma(of_x[group], {kOnes, kOnes, kOnes, kOnes}, v.x, v.y);
            Half<T>::mma(of_x[group], {kOnes, kOnes, kOnes, kOnes}, v.z, v.w);
          }
        }
      }
      if constexpr (F::kScalesChunks) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const auto of = i < 2 ? w.low_group[u] : w.high_group[u];
            float whole = of_chunk[group][i];
            if constexpr (F::kHasZeros) whole -= F::chunk_zero(of) * of_x[group][i];
            sum[group][i] += whole * F::chunk_scale(of);
          }
        }
      }
    }
  };

  int buffer = 0;
  auto finish = [&](int tile) {
    auto& parts = partial[buffer];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        parts[warp][i / 2 * 8 + g][group * 8 + t * 2 + i % 2] = sum[group][i];
        sum[group][i] = 0.f;
      }
    }
    if (tile + static_cast<int>(gridDim.x) >= num_tiles) allow_next();
    __syncthreads();
    store_tile<T>(p, tile, [&](int row, int token) {
      const int feature = feature_of(tile, row, p);
      float total = 0.f;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) total += parts[w][row][token];
      total *= F::scale(p, feature);
      if (p.bias) total += to_float(static_cast<const T*>(p.bias)[feature]);
      return rounded<T>(total);
    });
    buffer ^= 1;  // Nobody writes this one again before all have left the barrier of the other.
  };

  Cursor ahead = {static_cast<int>(blockIdx.x), warp}, here = ahead;
  Weights ring[kStages];
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    load(ring[stage], ahead);
    ahead.advance(num_chunks);
  }
  wait_for_inputs();
  while (here.tile < num_tiles) {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      if (here.tile >= num_tiles) break;
      load(ring[(stage + kStages - 1) % kStages], ahead);
      ahead.advance(num_chunks);
      compute(ring[stage], here.chunk);
      const int tile = here.tile;
      if (here.advance(num_chunks)) finish(tile);
    }
  }
}

int num_sms() {
  static const int count = [] {
    int device = 0, sms = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    return sms;
  }();
  return count;
}

template <typename T, template <typename> typename Format>
cudaError_t launch(const QuantizedLinear& p, cudaStream_t stream) {
  auto kernel = p.tokens <= 8 ? quantized_linear_kernel<T, Format, 1>
                              : quantized_linear_kernel<T, Format, 2>;
  const int tiles = p.features / kFeatures, room = num_sms() * kCtasPerSm;
  return launch_dependent(kernel, tiles < room ? tiles : room, kThreads, 0, stream, p);
}

}  // namespace

cudaError_t skinny_fp8_linear(const QuantizedLinear& linear, bool bf16, cudaStream_t stream) {
  if (linear.tokens == 0) return cudaSuccess;
  if (linear.block_rows > 0) {
    return bf16 ? launch<__nv_bfloat16, Fp8Blocks>(linear, stream)
                : launch<__half, Fp8Blocks>(linear, stream);
  }
  return bf16 ? launch<__nv_bfloat16, Fp8>(linear, stream) : launch<__half, Fp8>(linear, stream);
}

cudaError_t skinny_int4_linear(const QuantizedLinear& linear, bool bf16, cudaStream_t stream) {
  if (linear.tokens == 0) return cudaSuccess;
  if (linear.group_size % 128 == 0) {
    return bf16 ? launch<__nv_bfloat16, Int4Chunks>(linear, stream)
                : launch<__half, Int4Chunks>(linear, stream);
  }
  return bf16 ? launch<__nv_bfloat16, Int4>(linear, stream) : launch<__half, Int4>(linear, stream);
}

}  // namespace sluice
