// Attention of many query tokens over a paged KV cache with Hopper's own means (FlashAttention-3,
// arXiv 2407.08608): of one warpgroup, a warp has the copy engine bring the keys and values and the
// others bring the queries, a tile ahead; two warpgroups multiply.
//
// Work. The rows of a sequence are its query tokens x the query heads that share a KV head; a tile
// is 128 of them, 64 for each warpgroup, so keys are read once for all query heads. CTAs stay and
// take tiles in turn, longest first, back and forth over the grid, so that all end together. Keys
// are visited from the newest to the oldest: those that need a mask come first.
//
// The scores of block i + 1 are multiplied together with block i's values. A warpgroup's softmax
// begins while its values are multiplied, and hides behind the other warpgroup's products, too.
// (Measured: slower if all of it must come before the wait for the values, or if the warpgroups
// take turns.)
//
// A block of the cache has 16 tokens or a multiple: a copy takes a head of 16 tokens, 128-byte rows
// swizzled as wgmma wants them. Keys and values past a sequence's end are never read; their
// places are zeroed for the values, since 0 * NaN would survive.

#include "attention/prefill_loads.cuh"
#include "common/dependent_launch.cuh"
#include "common/device.cuh"
#include "common/tensor_map.cuh"
#include "common/wgmma.cuh"

namespace sluice {
namespace {

using namespace prefill;

#ifdef SLUICE_HOPPER

// Tells the compiler that a value is the same in the whole warp, so that what follows from it is
// worked out once, in the registers that descriptors are read from.
__device__ __forceinline__ uint32_t uniform(uint32_t x) { return __shfl_sync(~0u, x, 0); }

template <typename T, int D, bool kSoftCap, bool kShared>
class Consumer {
  using Memory = Shared<D>;
  static constexpr int kKeys = Memory::kKeys;
  static constexpr int kPanels = Memory::kPanels;
  static constexpr int kScores = kKeys / 2;  // per thread: 64 rows x kKeys over 128 threads
  static constexpr int kOutputs = D / 2;
  static constexpr int kSteps = kKeys / 16;

 public:
  // A row's weights are relative to 2^(a former maximum) until the maximum has grown by more than
  // this: hardly ever are there outputs to be multiplied again.
  static constexpr float kSlack = 8.f;

  __device__ Consumer(const PrefillParams& params, Memory& shared)
      : p(params),
        sm(shared),
        work(params),
        group(threadIdx.x / 128 - 1),
        thread(threadIdx.x % 128),
        lane(threadIdx.x % 32),
        scale(kSoftCap ? 1.f : p.scale * kLog2e) {}

  // One warpgroup.
  __device__ void run() {
    while (true) {
      mbarrier_wait(address(&sm.q_full[q_place.stage]), q_place.parity);
      const Tile tile = sm.tiles[q_place.stage];
      if (tile.index < 0) return;
      const int first = tile.begin / kKeys, last = (tile.end - 1) / kKeys;
      open(tile);
      mbarrier_wait(address(&sm.k_full[k_place.stage]), k_place.parity);
      multiply_keys();
      wgmma_wait<0>();
      pin(s);
      release(sm.k_empty, k_place);
      if ((last + 1) * kKeys > tile.seq_len) zero_values(tile.seq_len - last * kKeys);
      float fade[2];
      soften(tile, last, fade);
      pack();
#pragma unroll 1
      for (int block = last - 1; block >= first; --block) {
        mbarrier_wait(address(&sm.k_full[k_place.stage]), k_place.parity);
        multiply_keys();
        mbarrier_wait(address(&sm.v_full[v_place.stage]), v_place.parity);
        multiply_values();
        wgmma_wait<1>();
        pin(s);
        release(sm.k_empty, k_place);
        soften(tile, block, fade);
        hold(fade[0] + fade[1]);
        wgmma_wait<0>();
        pin(o);
        release(sm.v_empty, v_place);
        if (__any_sync(~0u, fade[0] != 1.f || fade[1] != 1.f)) {
#pragma unroll
          for (int i = 0; i < kOutputs; ++i) o[i] *= fade[i % 4 / 2];
        }
        pack();
      }
      release(sm.q_empty, q_place);
      mbarrier_wait(address(&sm.v_full[v_place.stage]), v_place.parity);
      multiply_values();
      wgmma_wait<0>();
      pin(o);
      release(sm.v_empty, v_place);
      close(tile);
    }
  }

 private:
  const PrefillParams& p;
  Memory& sm;
  Work<kShared> work;
  const int group, thread, lane;
  const float scale;  // of what `s` holds when the softmax begins, base 2
  Place<Memory::kQueryStages> q_place;
  Place<kStages> k_place, v_place;
  float s[kScores];
  float o[kOutputs];
  uint32_t weights[kSteps][4];
  float base[2], row_sum[2];  // of row_of(0) and row_of(1): weights are 2^(score - base)
  int position[2];

  // This thread's rows within the tile are row_of(0) and row_of(1).
  __device__ int row_of(int half) const {
    return group * kGroupRows + thread / 32 * 16 + half * 8 + lane / 4;
  }

  template <int kSize>
  __device__ void release(uint64_t* empty, Place<kSize>& place) {
    __syncwarp();
    if (lane == 0) mbarrier_arrive(address(&empty[place.stage]));
    place.advance();
  }

  __device__ void open(const Tile& tile) {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o[i] = 0.f;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      base[half] = -INFINITY;
      row_sum[half] = 0.f;
      const int row = tile.row + row_of(half);
      // Rows past the last one see what it sees: something, and nothing past the end.
      position[half] = kShared ? tile.computed
                               : min(tile.computed + quotient(row, p.group), tile.seq_len - 1);
    }
  }

  // s = Q K
  __device__ void multiply_keys() {
    const TileDescriptor<kPatchBytes> q(uniform(address(sm.q[q_place.stage][group])), 16);
    const TileDescriptor<Memory::kGroupBytes> k(uniform(address(sm.k[k_place.stage])), 16);
    pin(s);
    wgmma_fence();
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        wgmma<T>(s, q.at(panel * kGroupRows * kPanelBytes + step * 32),
                 k.at(panel * kPatchBytes + step * 32), panel == 0 && step == 0);
      }
    }
    wgmma_commit();
  }

  // o += P V
  __device__ void multiply_values() {
    const TileDescriptor<Memory::kGroupBytes> v(uniform(address(sm.v[v_place.stage])), kPatchBytes);
    pin(o);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      wgmma<T>(o, weights[step], v.at(step * Memory::kBoxBytes));
    }
    wgmma_commit();
  }

  // The place of values that do not exist, of the tile's first block: both warpgroups meet here.
  __device__ void zero_values(int known) {
    mbarrier_wait(address(&sm.v_full[v_place.stage]), v_place.parity);
    uint8_t* v = sm.v[v_place.stage];
    constexpr int kPieces = kPanels * 8;  // of 16 bytes
    for (int i = threadIdx.x - 128; i < (kKeys - known) * kPieces; i += kConsumers) {
      const int key = known + i / kPieces, piece = i % kPieces;
      const int at =
          key / 8 * Memory::kGroupBytes + piece / 8 * kPatchBytes + key % 8 * kPanelBytes;
      *reinterpret_cast<uint4*>(v + at + piece % 8 * 16) = make_uint4(0, 0, 0, 0);
    }
    fence_async_proxy();
    sync_named(kFilled, kConsumers);
  }

  // Online softmax: s becomes the weights of this block's values.
  __device__ void soften(const Tile& tile, int block, float (&fade)[2]) {
    if constexpr (kSoftCap) {
      const float inner = p.scale / p.soft_cap, outer = p.soft_cap * kLog2e;
#pragma unroll
      for (int i = 0; i < kScores; ++i) s[i] = outer * tanhf(s[i] * inner);
    }
    // Whole blocks that every row of the tile sees need no mask.
    const int key0 = block * kKeys;
    const int oldest = tile.computed + (kShared ? 0 : quotient(tile.row, p.group));
    if (key0 + kKeys - 1 > oldest || p.window > 0) mask(key0);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = -INFINITY;
#pragma unroll
      for (int i = 0; i < kScores; i += 4) {
        top = fmaxf(top, fmaxf(s[i + half * 2], s[i + half * 2 + 1]));
      }
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      top *= scale;
      const bool higher = !(top - base[half] <= kSlack);  // also if both are -inf
      const float now = higher ? top : base[half];
      // A row that has seen no key yet keeps -inf; exp2(-inf - -inf) must not become NaN.
      const float from = now == -INFINITY ? 0.f : now;
      fade[half] = higher ? exp2f(base[half] - from) : 1.f;
      base[half] = now;
      float sum = 0.f;
#pragma unroll
      for (int i = 0; i < kScores; i += 4) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[i + half * 2 + e];
          x = exp2f(x * scale - from);
          sum += x;
        }
      }
      row_sum[half] = row_sum[half] * fade[half] + sum;  // the lanes of a row add up at the end
    }
  }

  __device__ void mask(int key0) {
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int key = key0 + i / 4 * 8 + lane % 4 * 2 + i % 2, at = position[i % 4 / 2];
      if (key > at || (p.window > 0 && key <= at - p.window)) s[i] = -INFINITY;
    }
  }

  __device__ void pack() {
#pragma unroll
    for (int i = 0; i < kSteps * 4; ++i) {
      weights[i / 4][i % 4] = Half<T>::pack(s[i * 2], s[i * 2 + 1]);
    }
  }

  __device__ void close(const Tile& tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = row_sum[half];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const int row = tile.row + row_of(half);
      const bool exists = row < tile.num_rows;
      if constexpr (kShared) {
        if (exists) leave(half, sum, tile, row);
      } else {
        if (p.sinks) {
          const int head = tile.head * p.group.value + remainder(row, p.group);
          sum += exp2f(p.sinks[head] * kLog2e - base[half]);
        }
        T* to = static_cast<T*>(p.out) + work.place(tile, row, p.out_stride, D);
        store(half, sum > 0.f ? 1.f / sum : 0.f, to, exists);
      }
    }
  }

  // A row of the output. The four lanes that have it exchange columns, so that each writes eight
  // neighbours: whole sectors of memory.
  __device__ void store(int half, float factor, T* to, bool exists) {
#pragma unroll
    for (int i = 0; i < kOutputs; i += 16) {
      uint32_t x[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float* pair = &o[i + n * 4 + half * 2];
        x[n] = Half<T>::pack(pair[0] * factor, pair[1] * factor);
      }
      exchange(x[0], x[1], 1);
      exchange(x[2], x[3], 1);
      exchange(x[0], x[2], 2);
      exchange(x[1], x[3], 2);
      if (exists) {
        *reinterpret_cast<uint4*>(to + i * 2 + lane % 4 * 8) = make_uint4(x[0], x[1], x[2], x[3]);
      }
    }
  }

  // Between two lanes that differ in the bit `distance`: b of the lower for a of the upper one.
  __device__ void exchange(uint32_t& a, uint32_t& b, int distance) const {
    const bool upper = lane & distance;
    const uint32_t other = __shfl_xor_sync(~0u, upper ? a : b, distance);
    (upper ? a : b) = other;
  }

  // The partial result of a row.
  __device__ void leave(int half, float sum, const Tile& tile, int row) {
    const int heads = p.num_kv_heads * p.group.value;
    const int64_t splits = static_cast<int64_t>(p.splits[tile.index]) * p.batch;
    const int64_t at = splits * heads * D + work.place(tile, row, heads * D, D);
    if (lane % 4 == 0) p.partial_stats[at / D] = make_float2(base[half], sum);
    float* to = p.partial_out + at + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kOutputs; i += 4) {
      *reinterpret_cast<float2*>(to + i * 2) = make_float2(o[i + half * 2], o[i + half * 2 + 1]);
    }
  }
};

#endif  // Hopper

template <typename T, int D, bool kSoftCap, bool kShared>
__global__ void __launch_bounds__(kThreads, 1)
    paged_prefill_kernel(const PrefillParams params, const __grid_constant__ Maps maps) {
#ifdef SLUICE_HOPPER
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& sm = *reinterpret_cast<Shared<D>*>(raw);
  if (threadIdx.x == 0) {
    prefetch_map(maps.k);
    prefetch_map(maps.v);
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(address(&sm.k_full[stage]), 1);
      mbarrier_init(address(&sm.v_full[stage]), 1);
      mbarrier_init(address(&sm.k_empty[stage]), kConsumers / 32);
      mbarrier_init(address(&sm.v_empty[stage]), kConsumers / 32);
    }
    for (int stage = 0; stage < Shared<D>::kQueryStages; ++stage) {
      mbarrier_init(address(&sm.q_full[stage]), kQueryThreads);
      mbarrier_init(address(&sm.q_empty[stage]), kConsumers / 32);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  wait_for_inputs();
  if (threadIdx.x < 128) {
    give_up_registers<40>();
    if (threadIdx.x < 32) {
      Producer<D, kShared>(params, maps, sm).run();
    } else {
      QueryProducer<T, D, kShared>(params, sm).run();
    }
  } else {
    take_registers<232>();
    Consumer<T, D, kSoftCap, kShared>(params, sm).run();
  }
#endif
}

// The cache as [tokens / 8, heads, panels, 8 tokens, 64], copied in boxes of 16 tokens of a head.
cudaError_t describe_cache(CUtensorMap& map, const void* cache, const PrefillParams& p, bool bf16,
                           int head_dim) {
  const auto encode = tensor_map_encoder();
  if (!encode) return cudaErrorNotSupported;
  const cuuint64_t heads = p.num_kv_heads, panels = head_dim / 64;
  const cuuint64_t head_bytes = head_dim * 2, token_bytes = heads * head_bytes;
  const cuuint64_t sizes[] = {64, 8, panels, heads,
                              static_cast<cuuint64_t>(p.num_blocks) * p.block.value * 2};
  const cuuint64_t strides[] = {token_bytes, kPanelBytes, head_bytes, 8 * token_bytes};
  const cuuint32_t box[] = {64, 8, static_cast<cuuint32_t>(panels), 1, kBoxTokens / 8};
  const cuuint32_t steps[] = {1, 1, 1, 1, 1};
  const CUresult result = encode(
      &map, bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 5,
      const_cast<void*>(cache), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

template <typename T, int D, bool kSoftCap, bool kShared>
cudaError_t launch(const PrefillParams& p, int num_ctas, cudaStream_t stream) {
  constexpr bool kBf16 = std::is_same_v<T, __nv_bfloat16>;
  Maps maps;
  cudaError_t error = describe_cache(maps.k, p.k_cache, p, kBf16, D);
  if (error == cudaSuccess) error = describe_cache(maps.v, p.v_cache, p, kBf16, D);
  if (error != cudaSuccess) return error;
  const int smem = sizeof(Shared<D>);
  auto kernel = paged_prefill_kernel<T, D, kSoftCap, kShared>;
  static const cudaError_t ready =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
  if (ready != cudaSuccess) return ready;
  kernel<<<num_ctas, kThreads, smem, stream>>>(p, maps);
  return cudaGetLastError();
}

template <typename T, int D>
cudaError_t launch_causal(const PrefillParams& p, cudaStream_t stream) {
  const int num_ctas = min(num_sms(), p.num_tiles * p.num_kv_heads);
  return p.soft_cap > 0.f ? launch<T, D, true, false>(p, num_ctas, stream)
                          : launch<T, D, false, false>(p, num_ctas, stream);
}

template <typename T>
cudaError_t dispatch(const PrefillParams& p, int head_dim, cudaStream_t stream) {
  switch (head_dim) {
    case 64:
      return launch_causal<T, 64>(p, stream);
    case 128:
      return launch_causal<T, 128>(p, stream);
    case 256:
      return launch_causal<T, 256>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

template <typename T>
cudaError_t dispatch_shared(const PrefillParams& p, int head_dim,
                            cudaStream_t stream) {
  switch (head_dim) {
    case 64:
      return launch<T, 64, false, true>(p, num_sms(), stream);
    case 128:
      return launch<T, 128, false, true>(p, num_sms(), stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t paged_prefill(const PrefillParams& params, bool bf16, int head_dim,
                          cudaStream_t stream) {
  if (params.num_tiles == 0) return cudaSuccess;
  return bf16 ? dispatch<__nv_bfloat16>(params, head_dim, stream)
              : dispatch<__half>(params, head_dim, stream);
}

cudaError_t shared_prefix(const PrefillParams& params, bool bf16, int head_dim,
                          cudaStream_t stream) {
  return bf16 ? dispatch_shared<__nv_bfloat16>(params, head_dim, stream)
              : dispatch_shared<__half>(params, head_dim, stream);
}

}  // namespace sluice
