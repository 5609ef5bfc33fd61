// The phases of a layer, as the warps of a CTA that multiply go through them: each is a product, of
// which a thread finishes one row of a tile for one token. Before a phase's operand is read all CTAs
// have ended the phase before.
//
// RMSNorm takes no phase of its own: who makes a row's elements multiplies them with the norm's
// weight and hands on their squares, and who multiplies with the row scales the sums.
#pragma once

#include "persistent_attention.cuh"

namespace sluice::persistent {

// Normed rows are handed on before they are scaled; in float16 they would not always fit.
template <typename T>
constexpr float kUnscaled = std::is_same_v<T, __half> ? 1.f / 64 : 1.f;

template <typename T, int D, int kGroups>
class Layers {
  static constexpr int kTokens = kGroups * 8;

 public:
  __device__ __forceinline__ Layers(const PersistentDecoder& params, Shared& shared)
      : p(params), sm(shared), products(shared, params.tokens), attention(params, shared) {
    T* rows = static_cast<T*>(p.rows);
    residual = rows;
    normed = residual + kMostTokens * p.hidden;
    activated = normed + kMostTokens * p.hidden;
    attended = activated + kMostTokens * p.intermediate;
    qkv = attended + kMostTokens * p.q_heads * D;
  }

  __device__ __forceinline__ void run() {
    take_in();
#pragma unroll 1
    for (int layer = 0; layer < p.num_layers; ++layer) {
      const PersistentLayer& weights = p.layers[layer];
      const bool is_last = layer + 1 == p.num_layers;
      const void* next_norm = is_last ? nullptr : p.layers[layer + 1].input_norm;
#pragma unroll 1
      for (int which = 0; which < kProducts; ++which) {
        phase(weights, layer, which, which == kOutput ? weights.attended_norm : next_norm);
      }
    }
    if (threadIdx.x == 0) leave();
  }

 private:
  const PersistentDecoder& p;
  Shared& sm;
  Products<T, kGroups> products;
  TokenAttention<T, D, kGroups> attention;
  T *residual;                      // [tokens, hidden]
  T *normed, *activated, *attended;  // packed
  T *qkv;                           // [tokens, features]
  int phases = 0;                   // that have ended

  // What a thread needs to finish an output.
  struct Early {
    float added, gain;
  };

  // The first phase: no product, but the first norm.
  __device__ __forceinline__ void take_in() {
    const Share share = Share::of(p.hidden, 0);
    float squares = 0.f;
    for (int i = share.begin + products.row; i < share.end; i += kTileRows) {
      if (products.token >= p.tokens) break;
      const float gain = to_float(static_cast<const T*>(p.layers[0].input_norm)[i]);
      const int64_t at = static_cast<int64_t>(products.token) * p.hidden + i;
      hand_on(i, residual + at, to_float(static_cast<const T*>(p.x)[at]), gain, squares);
    }
    hand_on_squares(squares);
    end_phase();
  }

  __device__ __forceinline__ void phase(const PersistentLayer& weights, int layer, int which,
                                        const void* norm) {
    const Product product = product_of(p, nullptr, layer, which);
    const Share share = Share::of(product.outputs, product.index);
    if (which == kOutput) {
      attend(weights, layer);
      await(&p.counts->attended, (layer + 1) * p.kv_heads * p.tokens);
    } else {
      await(&p.counts->phases, phases * gridDim.x);
    }
    const T* x = which == kOutput ? attended : which == kDown ? activated : normed;
    T* out = which == kDown && !norm ? static_cast<T*>(p.out) : residual;
    const bool is_own = products.token < p.tokens;
    float squares = 0.f;
    products.multiply(
        product, share, x,
        [&] {
          if (which == kQkv || which == kGateUp) take_in_squares();
        },
        [&](int first) {
          const int output = first + products.row;
          Early early = {0.f, 0.f};
          if (!is_own || output >= share.end || which == kGateUp) return early;
          if (which == kQkv) {
            const T* bias = static_cast<const T*>(weights.qkv_bias);
            if (bias) early.added = to_float(__ldg(bias + output));
          } else {
            early.added = to_float(__ldcg(residual + residual_at(output)));
            if (norm) early.gain = to_float(__ldg(static_cast<const T*>(norm) + output));
          }
          return early;
        },
        [&](int first, const Early& early, float sum, float other) {
          const int output = first + products.row;
          if (!is_own || output >= share.end) return;
          if (which == kQkv) {
            const float scale = sm.scales[products.token];
            qkv[products.token * features() + output] = from_float<T>(sum * scale + early.added);
          } else if (which == kGateUp) {
            if (products.row >= kTileRows / 2) return;
            const float scale = sm.scales[products.token];
            const float gate = rounded<T>(sum * scale), up = rounded<T>(other * scale);
            const float active = rounded<T>(gate / (1.f + __expf(-gate)));
            activated[packed_at<kGroups>(products.token, output)] = from_float<T>(active * up);
          } else {
            const float value = rounded<T>(early.added + rounded<T>(sum));
            hand_on(output, out + residual_at(output), value, early.gain, squares);
          }
        });
    if (which == kOutput || which == kDown) hand_on_squares(squares);
    end_phase();
  }

  __device__ __forceinline__ int64_t features() const {
    return (p.q_heads + 2 * p.kv_heads) * D;
  }

  __device__ __forceinline__ int64_t residual_at(int output) const {
    return static_cast<int64_t>(products.token) * p.hidden + output;
  }

  // An element of this thread's token.
  __device__ __forceinline__ void hand_on(int i, T* to, float value, float gain, float& squares) {
    *to = from_float<T>(value);
    normed[packed_at<kGroups>(products.token, i)] = from_float<T>(value * gain * kUnscaled<T>);
    squares += value * value;
  }

  // Of this CTA, for every token.
  __device__ __forceinline__ void hand_on_squares(float squares) {
#pragma unroll
    for (int d = kTileRows / 2; d > 0; d /= 2) squares += __shfl_xor_sync(~0u, squares, d);
    if (products.row == 0) p.squares[products.token * gridDim.x + blockIdx.x] = squares;
  }

  // Of all CTAs; the scales can be read after the next barrier.
  __device__ __forceinline__ void take_in_squares() {
    float squares = 0.f;
    for (int cta = products.row; cta < gridDim.x; cta += kTileRows) {
      squares += __ldcg(p.squares + products.token * gridDim.x + cta);
    }
#pragma unroll
    for (int d = kTileRows / 2; d > 0; d /= 2) squares += __shfl_xor_sync(~0u, squares, d);
    const float scale = rsqrtf(squares / p.hidden + p.eps) / kUnscaled<T>;
    if (products.row == 0) sm.scales[products.token] = scale;
  }

  __device__ __forceinline__ void end_phase() {
    ++phases;
    sync_consumers();
    if (threadIdx.x == 0) publish(&p.counts->phases);
  }

  __device__ __forceinline__ void await(const int* count, int target) {
    if (threadIdx.x == 0) await_count(count, target);
    sync_consumers();
  }

  __device__ __forceinline__ void attend(const PersistentLayer& weights, int layer) {
    const PersistentCaches& caches = p.caches[layer];
    const AttentionRows<T> rows = {qkv,
                                   attended,
                                   weights.q_norm,
                                   weights.k_norm,
                                   static_cast<T*>(caches.k),
                                   static_cast<T*>(caches.v)};
    attention.run(rows, layer, [&] { await(&p.counts->phases, phases * gridDim.x); });
  }

  // The last CTA makes all counts ready for the next launch.
  __device__ __forceinline__ void leave() {
    if (arrive(&p.counts->left) != static_cast<int>(gridDim.x) - 1) return;
    p.counts->phases = p.counts->attended = p.counts->left = 0;
    for (int i = 0; i < p.tokens * p.kv_heads; ++i) p.counts->heads[i] = 0;
  }
};

}  // namespace sluice::persistent
