// Development form: o, gate_up, down and the next layer's qkv for up to 64 rows in one launch.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <cstdint>
#include <cstdio>

#include "exchange.cuh"
#include "dependent_launch.cuh"
#include "hopper.cuh"
#include "reduce.cuh"
#include "tensor_map.cuh"
#include "vector.cuh"
#include "wgmma.cuh"

#ifndef WINDOW
#define WINDOW 3
#endif
#ifdef STAMPS
#define STAMP(i) if (threadIdx.x == 0 && p.stamps) p.stamps[blockIdx.x * 32 + (i)] = clock64()
#else
#define STAMP(i)
#endif

using namespace sluice;
typedef __nv_bfloat16 T;

constexpr int kPair = 2, kSplit = 4, kTiles = 32, kCtas = kSplit * kTiles;
constexpr int kTokens = 64, kChunk = 64;
constexpr int kStages = 5, kStageBytes = 32768, kSlots = 8, kSlotBytes = kTokens * kChunk * 2;
constexpr int kWarps = 8, kConsumers = kWarps * 32, kThreads = kConsumers + 128;
constexpr int kHidden = 4096, kInter = 14336, kQkv = 6144;

struct Shared {
  uint8_t weights[kStages][kStageBytes];
  uint8_t x[kSlots][kSlotBytes];  // between a product's end and the next one's x: peers' sums
  float scales[kTokens];
  uint64_t full[kStages], empty[kStages], x_full[kSlots], x_empty[kSlots], x_free[kSlots];
};
static_assert(sizeof(Shared) <= 227 * 1024);

enum { kO, kGateUp, kDown, kNextQkv };

struct Layer {
  CUtensorMap w[4], x[4];
  T *normed_a, *normed_b, *activated, *qkv, *residual;
  const T *gain_a, *gain_b;
  float *squares_a, *squares_b;  // [kCtas][64]
  float4* parts;                 // [kTiles][to kSplit][of kSplit][kPartFloats]: ones where nothing is
  int* counts;                   // [3 * 32]
  long long* stamps;
  int tokens, phases;
  float eps;
};

__device__ __forceinline__ void copy_weights(uint32_t smem, const CUtensorMap& map,
                                             uint32_t barrier, int x, int y, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(smem),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(x), "r"(y), "r"(barrier), "l"(policy)
      : "memory");
}

__device__ __forceinline__ int steps_of(int phase) {
  return phase == kO ? kHidden / kSplit / 128
         : phase == kGateUp ? kHidden / 64
         : phase == kDown   ? kInter / kSplit / 128
                            : kHidden / kSplit / 64;
}

__device__ __forceinline__ void await_count(const Layer& p, int which) {
#ifndef NO_WAIT
  SpinLimit limit;
  int count;
  do {
    limit.check();
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(count) : "l"(p.counts + which * 32) : "memory");
  } while (count < kCtas);
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}

__device__ __forceinline__ void copy_stage(const Layer& p, Shared& sm, int split, int tile, int phase, int i, int stage, uint64_t policy) {
  const uint32_t full = address(&sm.full[stage]), to = address(sm.weights[stage]);
  if (phase == kGateUp) {
    mbarrier_expect(full, 4 * 56 * 128);
    const int row = blockIdx.x * 112;
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      copy_weights(to + w * 14336, p.w[1], full, i * 64, row + w * 56, policy);
      copy_weights(to + w * 14336 + 7168, p.w[1], full, i * 64, kInter + row + w * 56, policy);
    }
  } else if (phase == kNextQkv) {
    mbarrier_expect(full, 192 * 128);
    copy_weights(to, p.w[3], full, split * (kHidden / 4) + i * 64, tile * 192, policy);
  } else {
    mbarrier_expect(full, 2 * 128 * 128);
    const int k = (phase == kO ? kHidden / 4 : kInter / 4) * split + i * 128;
    copy_weights(to, p.w[phase], full, k, tile * 128, policy);
    copy_weights(to + 16384, p.w[phase], full, k + 64, tile * 128, policy);
  }
}

#ifndef BORDER
#define BORDER WINDOW
#endif

// The first WINDOW stages are under way. No more than BORDER are while the ring fills at a border.
__device__ __forceinline__ void produce_weights(const Layer& p, Shared& sm, int split, int tile) {
  const uint64_t policy = evict_first_policy();
  Place<kStages> place, arrived;
  place.stage = WINDOW % kStages;
  place.parity = WINDOW < kStages;
  int under_way = WINDOW;
#pragma unroll 1
  for (int phase = 0; phase < p.phases; ++phase) {
    const int steps = steps_of(phase);
#pragma unroll 1
    for (int i = phase == kO ? WINDOW : 0; i < steps; ++i, place.advance()) {
      mbarrier_wait(address(&sm.empty[place.stage]), place.parity);
      const int window = i < kStages ? BORDER : WINDOW;
      for (; under_way >= window; --under_way, arrived.advance()) mbarrier_wait(address(&sm.full[arrived.stage]), arrived.parity);
      ++under_way;
      copy_stage(p, sm, split, tile, phase, i, place.stage, policy);
    }
  }
}

__device__ __forceinline__ void produce_x(const Layer& p, Shared& sm, int rank, int split) {
  Place<kSlots> place;
  place.parity = 1;
  wait_for_inputs();
  int n = 0;  // of the launch's chunks
#pragma unroll 1
  for (int phase = 0; phase < p.phases; ++phase) {
    if (phase > 0) await_count(p, phase - 1);
    const int chunks = phase == kDown ? kInter / 256 : phase == kGateUp ? kHidden / 64 : kHidden / 256;
    const int first = phase == kGateUp ? 0 : split * chunks;
#pragma unroll 1
    for (int i = 0; i < chunks; ++i, ++n, place.advance()) {
      const int slot = place.stage;
      mbarrier_wait(address(&sm.x_empty[slot]), place.parity);
      mbarrier_expect(address(&sm.x_full[slot]), kSlotBytes);
      if (n % kPair == rank) {
        if (n >= kSlots) mbarrier_wait(address(&sm.x_free[slot]), place.parity);
        copy_box_to((1 << kPair) - 1, address(sm.x[slot]), p.x[phase], address(&sm.x_full[slot]), (first + i) * 64, 0);
      }
    }
  }
}

// Two warps: a thread a token.
__device__ __forceinline__ void make_scales(const Layer& p, Shared& sm, int token) {
#pragma unroll 1
  for (int phase = kGateUp; phase < p.phases; phase += 2) {
    await_count(p, phase - 1);
    const float* squares = (phase == kGateUp ? p.squares_a : p.squares_b) + token;
    float sum = 0.f;
#pragma unroll 16
    for (int i = 0; i < 2 * kCtas; ++i) sum += __ldcg(squares + i * kTokens);
    sm.scales[token] = rsqrtf(sum / kHidden + p.eps);
    asm volatile("bar.arrive 2, %0;" ::"n"(kConsumers + kTokens) : "memory");
  }
}

__device__ __forceinline__ uint32_t pack(float a, float b) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
  return reinterpret_cast<const uint32_t&>(v);
}
__device__ __forceinline__ float2 unpack(uint32_t v) {
  return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(v));
}

__device__ __forceinline__ void prefetch(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

struct Consumer {
  const Layer& p;
  Shared& sm;
  const int split, tile, group, warp, lane;
  Place<kStages> place;
  Place<kSlots> slot;
  int chunk = 0;  // of the launch

  __device__ Consumer(const Layer& p, Shared& sm, int split, int tile)
      : p(p), sm(sm), split(split), tile(tile), group(threadIdx.x / 128),
        warp(threadIdx.x / 32 % 4), lane(threadIdx.x % 32) {}

  // first: chunk of x.
  template <int kPanels>
  __device__ __forceinline__ void release(int stage, int first) {
    if (lane == 0) {
      mbarrier_arrive(address(&sm.empty[stage]));
#pragma unroll
      for (int i = first; i < first + kPanels; ++i) {
        mbarrier_arrive(address(&sm.x_empty[i % kSlots]));
        mbarrier_arrive_at(i % kPair, address(&sm.x_free[i % kSlots]));
      }
    }
  }

  template <int N, int kPanels>
  __device__ __forceinline__ void multiply(float (&sum)[N / 2], int steps, int offset, int stamp) {
    int last_stage = 0;
#pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      const int stage = place.stage;
      const uint32_t w = address(sm.weights[stage]) + offset;
      mbarrier_wait(address(&sm.full[stage]), place.parity);
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel, slot.advance()) {
        mbarrier_wait(address(&sm.x_full[slot.stage]), slot.parity);
        if (i == 0 && panel == 0) { STAMP(stamp); }
        const TileDescriptor<> x(address(sm.x[slot.stage]), 16), rows(w, 16);
        pin(sum);
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < kChunk / 16; ++s) {
          wgmma<T>(sum, x.at(s * 32), rows.at(panel * 16384 + s * 32), i == 0 && panel == 0 && s == 0);
        }
        wgmma_commit();
      }
      if (i > 0) {
        wgmma_wait<kPanels>();
        release<kPanels>(last_stage, chunk - kPanels);
      }
      last_stage = stage;
      chunk += kPanels;
      place.advance();
    }
    wgmma_wait<0>();
    pin(sum);
    release<kPanels>(last_stage, chunk - kPanels);
  }

  // Sums of N features of each warpgroup, of part `from` of k for CTA `to`: o's and down's have one
  // place, qkv's another.
  template <int N>
  __device__ __forceinline__ float4* parts_of(int to, int from) const {
    constexpr int kFirst = N == 64 ? 0 : kTiles * kSplit * kSplit * 512;
    return p.parts + kFirst + ((tile * kSplit + to) * kSplit + from) * (N * 8) + group * 128 + threadIdx.x % 128;
  }

  // Sums of all four parts of k; of each warpgroup's N features, CTA r gets r * N / 4 .. Item i of a
  // thread: two features of two tokens, features i * 8 + lane % 4 * 2 .. of those.
  template <int N>
  __device__ __forceinline__ void reduce(const float (&sum)[N / 2], float4 (&out)[N / 32]) {
    constexpr int kItems = N / 32;
    const bool is_own[3] = {split == 0, split == 1, split == 2};
    float4* const part = parts_of<N>(0, split);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      float own[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const auto at = [&](int to) { return sum[4 * (to * kItems + i) + j]; };
        own[j] = is_own[0] ? at(0) : is_own[1] ? at(1) : is_own[2] ? at(2) : at(3);
      }
      out[i] = make_float4(own[0], own[1], own[2], own[3]);
#pragma unroll
      for (int to = 0; to < kSplit; ++to) {
        const float* v = sum + 4 * (to * kItems + i);
        if (to != split) asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(part + to * (kSplit * N * 8) + i * 256), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]) : "memory");
      }
    }
    uint32_t words[kSplit][kItems][4];
    const float4* from[kSplit];
#pragma unroll
    for (int i = 1; i < kSplit; ++i) from[i] = parts_of<N>(split, (split + i) % kSplit);
#pragma unroll
    for (int of = 1; of < kSplit; ++of) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) look(words[of][i], from[of] + i * 256);
    }
    SpinLimit limit;
    uint32_t most;
    do {
      limit.check();
      most = 0;
#pragma unroll
      for (int of = 1; of < kSplit; ++of) {
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
          auto& w = words[of][i];
          const uint32_t m = max(max(w[0], w[1]), max(w[2], w[3]));
          if (m == ~0u) look(w, from[of] + i * 256);
          most = max(most, m);
        }
      }
    } while (most == ~0u);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
#pragma unroll
      for (int of = 1; of < kSplit; ++of) {
        const auto& w = words[of][i];
        out[i].x += __uint_as_float(w[0]), out[i].y += __uint_as_float(w[1]);
        out[i].z += __uint_as_float(w[2]), out[i].w += __uint_as_float(w[3]);
      }
    }
  }

  // Before the next sums can come, all CTAs have told of something behind this.
  template <int N>
  __device__ __forceinline__ void empty_parts() {
#pragma unroll
    for (int of = 1; of < kSplit; ++of) {
      float4* const from = parts_of<N>(split, (split + of) % kSplit);
#pragma unroll
      for (int i = 0; i < N / 32; ++i) empty(from + i * 256);
    }
  }

  __device__ __forceinline__ void tell(int which) {
    asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory");
    if (threadIdx.x == 0) {
      asm volatile("fence.acq_rel.gpu;\nred.release.gpu.global.add.s32 [%0], 1;" ::"l"(p.counts + which * 32) : "memory");
    }
  }

  // o and down: added to the residual, handed on times the next norm's weight.
  __device__ __forceinline__ void add(const int kPhase) {
    constexpr int N = 64, kItems = N / 32;
    T* const normed = kPhase == kO ? p.normed_a : p.normed_b;
    const T* const gain = kPhase == kO ? p.gain_a : p.gain_b;
    float* const squares = kPhase == kO ? p.squares_a : p.squares_b;
    const int feature = tile * 128 + group * 64 + split * 16 + lane % 4 * 2;
    const int token = warp * 16 + lane / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (lane % 4 == 0 && token + h * 8 < p.tokens) prefetch(p.residual + (token + h * 8) * kHidden + feature);
    }
    if (gain && threadIdx.x % 128 == 0) prefetch(gain + feature);
    float sum[N / 2];
    multiply<N, 2>(sum, steps_of(kPhase), group * 8192, kPhase * 4);
    STAMP(kPhase * 4 + 1);
    uint32_t before[kItems][2], gains[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      gains[i] = gain ? *reinterpret_cast<const uint32_t*>(gain + feature + i * 8) : 0;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        before[i][h] = token + h * 8 < p.tokens
                           ? __ldcg(reinterpret_cast<const uint32_t*>(p.residual + (token + h * 8) * kHidden + feature + i * 8))
                           : 0;
      }
    }
    float4 out[kItems];
    reduce<N>(sum, out);
    STAMP(kPhase * 4 + 2);
    float squared[2] = {0.f, 0.f};
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const float2 g = unpack(gains[i]);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (token + h * 8 >= p.tokens) continue;
        const float2 y = unpack(h ? pack(out[i].z, out[i].w) : pack(out[i].x, out[i].y));
        const float2 r = unpack(before[i][h]);
        const uint32_t packed = pack(r.x + y.x, r.y + y.y);
        const float2 v = unpack(packed);
        const int at = (token + h * 8) * kHidden + feature + i * 8;
        *reinterpret_cast<uint32_t*>(p.residual + at) = packed;
        if (gain) *reinterpret_cast<uint32_t*>(normed + at) = pack(v.x * g.x, v.y * g.y);
        squared[h] += v.x * v.x + v.y * v.y;
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      squared[h] += __shfl_xor_sync(~0u, squared[h], 1);
      squared[h] += __shfl_xor_sync(~0u, squared[h], 2);
      if (lane % 4 == 0) squares[(blockIdx.x * 2 + group) * kTokens + token + h * 8] = squared[h];
    }
    if (kPhase + 1 < p.phases) tell(kPhase);
    STAMP(kPhase * 4 + 3);
    empty_parts<N>();
  }

  __device__ __forceinline__ void gate() {
    constexpr int N = 112;
    float sum[N / 2];
    empty_parts<96>();  // of the launch before
    multiply<N, 1>(sum, steps_of(kGateUp), group * 14336, kGateUp * 4);
    STAMP(kGateUp * 4 + 1);
    asm volatile("bar.sync 2, %0;" ::"n"(kConsumers + kTokens) : "memory");
    // By way of the slots of x, of which nobody reads or writes any now.
    constexpr int kPitch = 72;  // elements of a token's
    uint16_t* const staged = reinterpret_cast<uint16_t*>(sm.x) + (group * kTokens + warp * 16) * kPitch;
    const float scales[2] = {sm.scales[warp * 16 + lane / 4], sm.scales[warp * 16 + lane / 4 + 8]};
    const auto gated = [&](int g, int h) {
      const float scale = scales[h];
      const float2 a = unpack(pack(sum[4 * g + 2 * h] * scale, sum[4 * g + 2 * h + 1] * scale));
      const float2 b = unpack(pack(sum[28 + 4 * g + 2 * h] * scale, sum[28 + 4 * g + 2 * h + 1] * scale));
      const float2 s = unpack(pack(__fdividef(a.x, 1.f + __expf(-a.x)), __fdividef(a.y, 1.f + __expf(-a.y))));
      return pack(s.x * b.x, s.y * b.y);
    };
    const uint32_t to = address(staged + lane % 16 * kPitch + lane / 16 * 8);
#pragma unroll
    for (int g = 0; g < 6; g += 2) store_matrices(to + g * 16, gated(g, 0), gated(g, 1), gated(g + 1, 0), gated(g + 1, 1));
    {
      uint32_t* const last = reinterpret_cast<uint32_t*>(staged + lane / 4 * kPitch + 48 + lane % 4 * 2);
      last[0] = gated(6, 0);
      last[8 * kPitch / 2] = gated(6, 1);
    }
    __syncwarp();
    T* const out = p.activated + static_cast<int64_t>(warp * 16) * kInter + blockIdx.x * 112 + group * 56;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = i * 4 + lane / 8, at = lane % 8 * 8;
      if (warp * 16 + row < p.tokens && at < 56) *reinterpret_cast<uint4*>(out + row * kInter + at) = *reinterpret_cast<const uint4*>(staged + row * kPitch + at);
    }
    fence_async_proxy();
    tell(kGateUp);
    STAMP(kGateUp * 4 + 3);
  }

  __device__ __forceinline__ void qkv() {
    constexpr int N = 96, kItems = N / 32;
    float sum[N / 2];
    multiply<N, 1>(sum, steps_of(kNextQkv), group * 12288, kNextQkv * 4);
    STAMP(kNextQkv * 4 + 1);
    float4 out[kItems];
    reduce<N>(sum, out);
    asm volatile("bar.sync 2, %0;" ::"n"(kConsumers + kTokens) : "memory");
    const int feature = tile * 192 + group * 96 + split * 24 + lane % 4 * 2;
    const int token = warp * 16 + lane / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float scale = sm.scales[token + h * 8];
      if (token + h * 8 >= p.tokens) continue;
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const float2 v = h ? make_float2(out[i].z, out[i].w) : make_float2(out[i].x, out[i].y);
        *reinterpret_cast<uint32_t*>(p.qkv + (token + h * 8) * kQkv + feature + i * 8) = pack(v.x * scale, v.y * scale);
      }
    }
    STAMP(kNextQkv * 4 + 3);
    if (threadIdx.x == 0) allow_next();
  }
};

__global__ void __cluster_dims__(kPair, 1, 1) __launch_bounds__(kThreads, 1)
    layer_kernel(const __grid_constant__ Layer p) {
#ifdef SLUICE_HOPPER
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& sm = *reinterpret_cast<Shared*>(raw);
  const int rank = blockIdx.x % kPair, pair = blockIdx.x / kPair;
  const int split = pair % kSplit, tile = pair / kSplit * kPair + rank;
  STAMP(16);
  if (threadIdx.x == kConsumers) {
    for (int i = 0; i < 4; ++i) prefetch_map(p.w[i]), prefetch_map(p.x[i]);
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(address(&sm.full[i]), 1);
      mbarrier_init(address(&sm.empty[i]), kWarps);
    }
    for (int i = 0; i < kSlots; ++i) {
      mbarrier_init(address(&sm.x_full[i]), 1);
      mbarrier_init(address(&sm.x_empty[i]), kWarps);
      mbarrier_init(address(&sm.x_free[i]), kWarps * kPair);
    }
    mbarrier_init_fence();
    fence_async_proxy();
    for (int i = 0; i < WINDOW; ++i) copy_stage(p, sm, split, tile, kO, i, i, evict_first_policy());
  }
  meet_cluster();
  const int warp = threadIdx.x / 32;
  if (warp < kWarps) {
    take_registers<208>();
    Consumer consumer(p, sm, split, tile);
#pragma unroll 1
    for (int phase = kO; phase <= kDown; phase += 2) {
      consumer.add(phase);
      if (phase == kO) consumer.gate();
    }
    if (p.phases > kNextQkv) consumer.qkv();
  } else {
    give_up_registers<88>();
    if (warp == kWarps) {
    if (threadIdx.x % 32 == 0) produce_weights(p, sm, split, tile);
    } else if (warp == kWarps + 1) {
    if (threadIdx.x % 32 == 0) produce_x(p, sm, rank, split);
    } else {
    make_scales(p, sm, threadIdx.x - kConsumers - 64);
    }
  }
  __syncwarp();
  meet_cluster();  // nobody sends to a CTA that is gone
#endif
}

static bool describe(CUtensorMap& map, const void* m, int64_t rows, int64_t k, int box_rows) {
  const cuuint64_t sizes[] = {(cuuint64_t)k, (cuuint64_t)rows};
  const cuuint64_t strides[] = {(cuuint64_t)k * 2};
  const cuuint32_t box[] = {64, (cuuint32_t)box_rows}, steps[] = {1, 1};
  return tensor_map_encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(m), sizes, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

static cudaLaunchAttribute attributes[2];
static cudaLaunchConfig_t config_of(int mode, cudaStream_t stream) {
  cudaLaunchConfig_t c = {};
  c.gridDim = kCtas; c.blockDim = kThreads; c.dynamicSmemBytes = sizeof(Shared); c.stream = stream;
  attributes[0].id = mode == 1 ? cudaLaunchAttributeProgrammaticStreamSerialization : cudaLaunchAttributeCooperative;
  attributes[0].val = {};
  if (mode == 1) attributes[0].val.programmaticStreamSerializationAllowed = 1; else attributes[0].val.cooperative = 1;
  c.attrs = attributes; c.numAttrs = mode == 2 ? 0 : 1;
  return c;
}

extern "C" int c_clusters() {
  cudaError_t e = cudaFuncSetAttribute(layer_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
  if (e != cudaSuccess) return -(int)e;
  cudaLaunchConfig_t c = config_of(2, 0);
  int n = 0;
  cudaLaunchAttribute a = {}; a.id = cudaLaunchAttributeClusterDimension; a.val.clusterDim = {kPair, 1, 1};
  c.attrs = &a; c.numAttrs = 1;
  e = cudaOccupancyMaxActiveClusters(&n, layer_kernel, &c);
  return e == cudaSuccess ? n : -(int)e;
}

// pointers: o, gate_up, down, qkv weights; attended, normed_a, activated, normed_b, qkv out,
// residual, gain_a, gain_b, squares_a, squares_b, counts, stamps. mode: 0 cooperative, 1 dependent, 2 plain.
extern "C" int c_layer(void** q, int tokens, int phases, float eps, int mode, void* stream) {
  Layer p = {};
  bool ok = describe(p.w[0], q[0], kHidden, kHidden, 128) && describe(p.w[1], q[1], 2 * kInter, kHidden, 56) &&
            describe(p.w[2], q[2], kHidden, kInter, 128) && describe(p.w[3], q[3], kQkv, kHidden, 192) &&
            describe(p.x[0], q[4], tokens, kHidden, 64) && describe(p.x[1], q[5], tokens, kHidden, 64) &&
            describe(p.x[2], q[6], tokens, kInter, 64) && describe(p.x[3], q[7], tokens, kHidden, 64);
  if (!ok) return 1000;
  p.normed_a = (T*)q[5]; p.activated = (T*)q[6]; p.normed_b = (T*)q[7]; p.qkv = (T*)q[8]; p.residual = (T*)q[9];
  p.gain_a = (T*)q[10]; p.gain_b = (T*)q[11]; p.squares_a = (float*)q[12]; p.squares_b = (float*)q[13];
  p.counts = (int*)q[14]; p.stamps = (long long*)q[15]; p.parts = (float4*)q[16];
  p.tokens = tokens; p.phases = phases; p.eps = eps;
  static cudaError_t set = cudaFuncSetAttribute(layer_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
  if (set != cudaSuccess) return set;
  cudaLaunchConfig_t c = config_of(mode, (cudaStream_t)stream);
  return cudaLaunchKernelEx(&c, layer_kernel, p);
}
