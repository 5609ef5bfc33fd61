// Two warpgroups of a CTA multiply: the tokens are the 64 rows of an instruction, the features of a
// tile its columns. Accumulators 4 * i .. of a thread are of two neighbouring features, the pair
// lane % 4 of eight, and of tokens t and t + 8.
//
// Of all but the gates, four CTAs have a part of k each: they hand each other a quarter of their
// sums and add up the rest, always in the same order. What nobody reads any more is emptied behind
// the next hand-over, where nobody waits for it.
#pragma once

#include "common/exchange.cuh"
#include "common/mma.cuh"
#include "common/wgmma.cuh"
#include "gemm/layer_products_loads.cuh"

namespace sluice::products {

// Two elements of 16 bits.
template <typename T>
__device__ __forceinline__ uint32_t packed(float a, float b) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 both = __floats2half2_rn(a, b);
    return reinterpret_cast<const uint32_t&>(both);
  } else {
    const __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
    return reinterpret_cast<const uint32_t&>(both);
  }
}

template <typename T>
__device__ __forceinline__ float2 unpacked(uint32_t both) {
  if constexpr (std::is_same_v<T, __half>) {
    return __half22float2(reinterpret_cast<const __half2&>(both));
  } else {
    return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(both));
  }
}

// silu(gate) * up of two features, rounded after every operation.
template <typename T>
__device__ __forceinline__ uint32_t gated(float2 gate, float2 up, float scale) {
  const float2 g = unpacked<T>(packed<T>(gate.x * scale, gate.y * scale));
  const float2 u = unpacked<T>(packed<T>(up.x * scale, up.y * scale));
  const float2 active =
      unpacked<T>(packed<T>(g.x / (1.f + __expf(-g.x)), g.y / (1.f + __expf(-g.y))));
  return packed<T>(active.x * u.x, active.y * u.y);
}

template <typename T, typename Sizes>
class Consumer {
 public:
  __device__ Consumer(const Launch& launch, Shared& shared, const Role& role)
      : p(launch.layer), launch(launch), sm(shared), role(role), group(threadIdx.x / 128),
        lane(threadIdx.x % 32), token(threadIdx.x / 32 % 4 * 16 + lane / 4) {}

  __device__ void run() {
    bool is_last = false;  // of all CTAs: nobody waits for a count any more
    // One loop for two products: less code to load.
#pragma unroll 1
    for (int product = kOutput; product <= kDown; product += kDown) {
      is_last = add(product);
      if (product == kOutput) gate();
    }
    if (launch.num_products > kQkv) is_last = project();
    if (is_last) clear_counts();
    if (threadIdx.x == 0) allow_next();
  }

 private:
  const LayerProducts& p;
  const Launch& launch;
  Shared& sm;
  const Role role;
  const int group, lane;
  const int token;  // and the one 8 after it
  Place<kStages> place;
  Place<kSlots> slot;
  int chunk = 0;  // of the launch

  // Counts the CTA among those that wait for no count any more; whether it is the last. Only one
  // thread does it, whose answer comes while it adds up.
  __device__ __forceinline__ bool leave() const {
    return threadIdx.x == 0 && arrive(p.counts + kLeft * 32) == Sizes::kCtas - 1;
  }
  __device__ __forceinline__ void clear_counts() const {
#pragma unroll
    for (int i = 0; i <= kLeft; ++i) p.counts[i * 32] = 0;
  }

  // Gives back a stage and the chunks of tokens from `first` on that it was multiplied with.
  template <int kChunks>
  __device__ __forceinline__ void release(int stage, int first) const {
    if (lane != 0) return;
    mbarrier_arrive(address(&sm.empty[stage]));
#pragma unroll
    for (int i = first; i < first + kChunks; ++i) {
      mbarrier_arrive(address(&sm.x_empty[i % kSlots]));
      mbarrier_arrive_at(i % kPair, address(&sm.x_free[i % kSlots]));
    }
  }

  // The sums of a warpgroup's N features. kChunks: of k, in a stage; the warpgroup's rows begin
  // `offset` bytes after those of the stage.
  template <int N, int kChunks>
  __device__ __forceinline__ void multiply(float (&sum)[N / 2], int steps, int offset) {
    int last = 0;
#pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      const int stage = place.stage;
      const TileDescriptor<> rows(address(sm.weights[stage]) + offset, 16);
      mbarrier_wait(address(&sm.full[stage]), place.parity);
#pragma unroll
      for (int panel = 0; panel < kChunks; ++panel, slot.advance()) {
        mbarrier_wait(address(&sm.x_full[slot.stage]), slot.parity);
        const TileDescriptor<> x(address(sm.x[slot.stage]), 16);
        pin(sum);
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < kChunk / 16; ++s) {
          const bool is_first = i == 0 && panel == 0 && s == 0;
          wgmma<T>(sum, x.at(s * 32), rows.at(panel * kPanelBytes + s * 32), is_first);
        }
        wgmma_commit();
      }
      if (i > 0) {
        wgmma_wait<kChunks>();
        release<kChunks>(last, chunk - kChunks);
      }
      last = stage;
      chunk += kChunks;
      place.advance();
    }
    wgmma_wait<0>();
    pin(sum);
    release<kChunks>(last, chunk - kChunks);
  }

  // Where this thread's sums of part `from` of k for CTA `to` are: those of attention's output and
  // of down in one place, the projections' in another.
  template <int N>
  __device__ __forceinline__ float4* parts_of(int to, int from) const {
    constexpr bool kIsQkv = N != 64;
    constexpr int kFirst = kIsQkv ? Sizes::kTiles * kSplit * kSplit * Sizes::kPartSize : 0;
    static_assert(N * 32 == (kIsQkv ? Sizes::kQkvPartSize : Sizes::kPartSize));
    const int part = (role.tile * kSplit + to) * kSplit + from;
    return reinterpret_cast<float4*>(p.parts + kFirst) + part * (N * 8) + threadIdx.x;
  }

  // The sums over all of k of the CTA's quarter of N features: `kSplit` CTAs take them in turns.
  template <int N>
  __device__ __forceinline__ void reduce(const float (&sum)[N / 2], float4 (&out)[N / 32]) const {
    constexpr int kItems = N / 32;
    const int split = role.split;
    const bool is_first = split == 0, is_second = split == 1, is_third = split == 2;
    float4* const parts = parts_of<N>(0, split);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      // By choice, not by index: sums stay in registers.
      float own[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const auto at = [&](int to) { return sum[4 * (to * kItems + i) + j]; };
        own[j] = is_first ? at(0) : is_second ? at(1) : is_third ? at(2) : at(3);
      }
      out[i] = make_float4(own[0], own[1], own[2], own[3]);
#pragma unroll
      for (int to = 0; to < kSplit; ++to) {
        const float* v = sum + 4 * (to * kItems + i);
        float4* const at = parts + to * (kSplit * N * 8) + i * kConsumers;
        if (to != split) hand_over(at, make_float4(v[0], v[1], v[2], v[3]));
      }
    }
    uint32_t words[kSplit][kItems][4];
    take_in<N>(words);
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

  // The other CTAs' sums; of the next one after this first.
  template <int N>
  __device__ __forceinline__ void take_in(uint32_t (&words)[kSplit][N / 32][4]) const {
    constexpr int kItems = N / 32;
    const float4* from[kSplit];
#pragma unroll
    for (int of = 1; of < kSplit; ++of) {
      from[of] = parts_of<N>(role.split, (role.split + of) % kSplit);
#pragma unroll
      for (int i = 0; i < kItems; ++i) look(words[of][i], from[of] + i * kConsumers);
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
          const uint32_t greatest = max(max(w[0], w[1]), max(w[2], w[3]));
          if (greatest == ~0u) look(w, from[of] + i * kConsumers);
          most = max(most, greatest);
        }
      }
    } while (most == ~0u);
  }

  // Before the next sums can come there, all CTAs have told of something behind this.
  template <int N>
  __device__ __forceinline__ void empty_parts() const {
#pragma unroll
    for (int of = 1; of < kSplit; ++of) {
      float4* const from = parts_of<N>(role.split, (role.split + of) % kSplit);
#pragma unroll
      for (int i = 0; i < N / 32; ++i) empty(from + i * kConsumers);
    }
  }

  // Tells all CTAs that this one has written its results of a product.
  __device__ __forceinline__ void tell(int product) const {
    sync_named(1, kConsumers);
    if (threadIdx.x == 0) publish(count_of(launch, product));
  }

  // Attention's output or down: added to the residual, and handed on times the next norm's weight.
  // Returns what `leave` does, if it is the launch's last product.
  __device__ __forceinline__ bool add(const int product) {
    constexpr int N = 64, kItems = N / 32;
    const bool is_mid = product == kOutput, is_end = product + 1 == launch.num_products;
    const T* const gain = static_cast<const T*>(is_mid ? p.mid_norm : p.next_norm);
    T* const residual = static_cast<T*>(p.residual);
    const int feature = role.tile * kTileRows + group * 64 + role.split * 16 + lane % 4 * 2;
    const auto at = [&](int i, int half) {
      return (token + half * 8) * Sizes::kHidden + feature + i * 8;
    };
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (lane % 4 == 0 && token + half * 8 < p.tokens) prefetch_l2(residual + at(0, half));
    }
    if (gain && threadIdx.x % 128 == 0) prefetch_l2(gain + feature);
    float sum[N / 2];
    multiply<N, 2>(sum, Sizes::steps(product), group * 64 * kRowBytes);
    const bool is_last = is_end && leave();
    uint32_t before[kItems][2], gains[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      gains[i] = gain ? *reinterpret_cast<const uint32_t*>(gain + feature + i * 8) : 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto* from = reinterpret_cast<const uint32_t*>(residual + at(i, half));
        before[i][half] = token + half * 8 < p.tokens ? __ldcg(from) : 0;
      }
    }
    float4 out[kItems];
    reduce<N>(sum, out);
    T* const normed = static_cast<T*>(is_mid ? p.mid : p.next);
    float squares[2] = {0.f, 0.f};
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const float2 g = unpacked<T>(gains[i]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (token + half * 8 >= p.tokens) continue;
        const float2 y = unpacked<T>(half ? packed<T>(out[i].z, out[i].w)
                                          : packed<T>(out[i].x, out[i].y));
        const float2 r = unpacked<T>(before[i][half]);
        const uint32_t rounded = packed<T>(r.x + y.x, r.y + y.y);
        const float2 v = unpacked<T>(rounded);
        *reinterpret_cast<uint32_t*>(residual + at(i, half)) = rounded;
        if (gain) {
          *reinterpret_cast<uint32_t*>(normed + at(i, half)) = packed<T>(v.x * g.x, v.y * g.y);
        }
        squares[half] += v.x * v.x + v.y * v.y;
      }
    }
    store_squares(squares, is_mid);
    if (!is_end) tell(product);
    empty_parts<N>();
    return is_last;
  }

  // Of this thread's tokens, over the features that its warp has.
  __device__ __forceinline__ void store_squares(float (&squares)[2], bool is_mid) const {
    float* const to = p.squares + (is_mid ? 0 : 2 * Sizes::kCtas * kTokens) +
                      (blockIdx.x * 2 + group) * kTokens + token;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      squares[half] += __shfl_xor_sync(~0u, squares[half], 1);
      squares[half] += __shfl_xor_sync(~0u, squares[half], 2);
      if (lane % 4 == 0) to[half * 8] = squares[half];
    }
  }

  // The gates and ups, and what becomes of them.
  __device__ __forceinline__ void gate() {
    constexpr int kGates = Sizes::kGates, N = 2 * kGates, kEights = kGates / 8;
    float sum[N / 2];
    empty_parts<Sizes::kQkvRows / 2>();  // of the launch before
    multiply<N, 1>(sum, Sizes::steps(kGateUp), group * N * kRowBytes);
    sync_named(kScaled, kScaledThreads);
    // By way of the slots of x, of which nobody reads or writes any now, in 16 bytes.
    constexpr int kPitch = kGates | 8;  // elements of a token's: other banks for each of eight
    const int first = token - lane / 4;  // of the warp
    uint16_t* const staged = reinterpret_cast<uint16_t*>(sm.x) + (group * kTokens + first) * kPitch;
    const float scales[2] = {sm.scales[token], sm.scales[token + 8]};
    const auto active = [&](int i, int half) {
      const float *g = sum + 4 * i + 2 * half, *up = g + N / 4;
      return gated<T>({g[0], g[1]}, {up[0], up[1]}, scales[half]);
    };
    const uint32_t to = address(staged + lane % 16 * kPitch + lane / 16 * 8);
#pragma unroll
    for (int i = 0; i + 1 < kEights; i += 2) {
      store_matrices(to + i * 16, active(i, 0), active(i, 1), active(i + 1, 0), active(i + 1, 1));
    }
    if constexpr (kEights % 2 == 1) {
      constexpr int kLast = kEights - 1;
      auto* at = reinterpret_cast<uint32_t*>(staged + lane / 4 * kPitch + kLast * 8 + lane % 4 * 2);
      at[0] = active(kLast, 0);
      at[8 * kPitch / 2] = active(kLast, 1);
    }
    __syncwarp();
    T* const out = static_cast<T*>(p.activated) + first * Sizes::kIntermediate +
                   (blockIdx.x * 2 + group) * kGates;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = i * 4 + lane / 8, feature = lane % 8 * 8;
      if (first + row >= p.tokens || feature >= kGates) continue;
      *reinterpret_cast<uint4*>(out + row * Sizes::kIntermediate + feature) =
          *reinterpret_cast<const uint4*>(staged + row * kPitch + feature);
    }
    fence_async_proxy();  // the copy engine writes to the slots next
    tell(kGateUp);
  }

  // The next layer's queries, keys and values. Returns what `leave` does.
  __device__ __forceinline__ bool project() {
    constexpr int kRows = Sizes::kQkvRows, N = kRows / 2, kItems = N / 32;
    float sum[N / 2];
    multiply<N, 1>(sum, Sizes::steps(kQkv), group * N * kRowBytes);
    sync_named(kScaled, kScaledThreads);
    const bool is_last = leave();
    float4 out[kItems];
    reduce<N>(sum, out);
    const int feature = role.tile * kRows + group * N + role.split * (N / kSplit) + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (token + half * 8 >= p.tokens) continue;
      const float scale = sm.scales[token + half * 8];
      T* const to = static_cast<T*>(p.qkv) + (token + half * 8) * Sizes::kQkvFeatures + feature;
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const float2 v = half ? make_float2(out[i].z, out[i].w) : make_float2(out[i].x, out[i].y);
        *reinterpret_cast<uint32_t*>(to + i * 8) = packed<T>(v.x * scale, v.y * scale);
      }
    }
    return is_last;
  }
};

// What the threads of a CTA do. The memory is as it was.
template <typename T, typename Sizes>
__device__ __forceinline__ void run_cta(const Launch& p, Shared& sm) {
  const Role role = Role::of_cta();
  WeightProducer<Sizes> weights(p, sm, role);
  if (threadIdx.x == kConsumers) {
    for (int i = 0; i < 4; ++i) prefetch_map(p.weights[i]), prefetch_map(p.x[i]);
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
    weights.begin();
  }
  meet_cluster();
  const int warp = threadIdx.x / 32 - kWarps;
  if (warp < 0) {
    take_registers<kConsumerRegisters>();
    Consumer<T, Sizes>(p, sm, role).run();
  } else {
    give_up_registers<kProducerRegisters>();
    if (warp == 0 && threadIdx.x % 32 == 0) weights.run();
    if (warp == 1 && threadIdx.x % 32 == 0) produce_tokens<Sizes>(p, sm, role);
    if (warp >= 2) make_scales<Sizes>(p, sm, threadIdx.x - kConsumers - 64);
  }
  __syncwarp();
  meet_cluster();  // nobody sends to a CTA that is gone
}

}  // namespace sluice::products
