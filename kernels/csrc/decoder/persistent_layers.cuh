// The phases of a layer, as the warps of a CTA that multiply go through them: each is a product, of
// which a thread finishes one row of a tile for one token. A CTA goes on as soon as its own
// operands are there: with the first passes of the last product, for one, while others still make
// gates.
//
// RMSNorm takes no phase of its own: who makes a row's elements multiplies them with the norm's
// weight and hands on their squares, and who multiplies with the row scales the sums.
#pragma once

#include "common/reduce.cuh"
#include "decoder/persistent_attention.cuh"

namespace sluice::persistent {

// Normed rows are handed on before they are scaled; in float16 they would not always fit.
template <typename T>
constexpr float kUnscaled = std::is_same_v<T, __half> ? 1.f / 64 : 1.f;

// kDrafts: sequences may have more than one token, and layers' inputs may be aux.
template <typename T, int D, int kGroups, bool kDrafts>
class Layers {
  static constexpr int kTokens = kGroups * 8;

 public:
  __device__ __forceinline__ Layers(const PersistentDecoder& params, Shared& shared)
      : p(params), sm(shared), products(shared, params.tokens), attention(params, shared),
        residual(static_cast<T*>(p.residual)) {}

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
      __syncwarp();
      if (threadIdx.x % 32 == 0) mbarrier_arrive(address(&sm.ended));
    }
  }

 private:
  using Rows = Exchange<T, D, kGroups>;

  const PersistentDecoder& p;
  Shared& sm;
  Products<T, kGroups> products;
  TokenAttention<T, D, kGroups, kDrafts> attention;
  T* const residual;  // [tokens, hidden]; of an element, only one thread knows

  // What a thread needs to finish an output.
  struct Early {
    float added, gain;
  };

  // No product, but the first norm.
  __device__ __forceinline__ void take_in() {
    const Rows to(p, 0);
    const Share share = Share::of(p.hidden);
    float squares = 0.f;
    for (int i = share.begin + products.row; i < share.end; i += kTileRows) {
      if (products.token >= p.tokens) break;
      const float gain = to_float(static_cast<const T*>(p.layers[0].input_norm)[i]);
      const int64_t at = static_cast<int64_t>(products.token) * p.hidden + i;
      const float value = to_float(static_cast<const T*>(p.x)[at]);
      residual[at] = from_float<T>(value);
      if constexpr (kDrafts) store_tap(0, i, value);
      hand_on(i, to.normed(false), value, gain, squares);
    }
    hand_on_squares(to.squares(false), squares);
  }

  __device__ __forceinline__ void phase(const PersistentLayer& weights, int layer, int which,
                                        const void* norm) {
    const Product product = product_of(p, nullptr, which);
    const Rows rows(p, layer), next(p, which == kDown ? layer + 1 : layer);
    if (which == kOutput) attend(weights, layer);
    if (which == kDown) await_shared(address(&sm.layers), layer);  // the next exchange is empty
    const T* x = which == kOutput ? rows.attended()
                 : which == kDown ? rows.activated()
                                  : rows.normed(which == kGateUp);
    const bool is_normed = which == kQkv || which == kGateUp;
    const bool is_own = products.token < p.tokens;
    float squares = 0.f;
    Squares asked = {};
    products.multiply(
        product, x,
        [&] {
          if (is_normed) ask_for_squares(asked, rows.squares(which == kGateUp));
        },
        [&] {
          if (is_normed) take_in_squares(asked, rows.squares(which == kGateUp));
        },
        [&](int first, int outputs) {
          const int output = first + products.row;
          Early early = {0.f, 0.f};
          if (!is_own || products.row >= outputs || which == kGateUp) return early;
          if (which == kQkv) {
            const T* bias = static_cast<const T*>(weights.qkv_bias);
            if (bias) early.added = to_float(__ldg(bias + output));
          } else {
            early.added = to_float(residual[residual_at(output)]);
            if (norm) early.gain = to_float(__ldg(static_cast<const T*>(norm) + output));
          }
          return early;
        },
        [&](int first, int outputs, const Early& early, float sum, float other) {
          const int output = first + products.row;
          if (!is_own || products.row >= outputs) return;
          if (which == kQkv) {
            const float scale = sm.scales[products.token];
            hand_over(rows.qkv() + products.token * rows.features() + output,
                      from_float<T>(sum * scale + early.added));
          } else if (which == kGateUp) {
            const float scale = sm.scales[products.token];
            const float gate = rounded<T>(sum * scale), up = rounded<T>(other * scale);
            const float active = rounded<T>(gate / (1.f + __expf(-gate)));
            hand_over(rows.activated() + packed_at<kGroups>(products.token, output),
                      from_float<T>(active * up));
          } else {
            const float value = rounded<T>(early.added + rounded<T>(sum));
            T* out = which == kDown && !norm ? static_cast<T*>(p.out) : residual;
            out[residual_at(output)] = from_float<T>(value);
            if (norm) hand_on(output, next.normed(which == kOutput), value, early.gain, squares);
            if constexpr (kDrafts) {
              if (norm && which == kDown) store_tap(layer + 1, output, value);
            }
          }
        });
    if (!is_normed && norm) hand_on_squares(next.squares(which == kOutput), squares);
  }

  __device__ __forceinline__ int64_t residual_at(int output) const {
    return static_cast<int64_t>(products.token) * p.hidden + output;
  }

  // An element of a layer's input, if that is wanted.
  __device__ __forceinline__ void store_tap(int layer, int element, float value) const {
    T* state = p.aux_states ? static_cast<T*>(p.aux_states[layer]) : nullptr;
    if (state) state[products.token * p.aux_stride + element] = from_float<T>(value);
  }

  // An element of this thread's token.
  __device__ __forceinline__ void hand_on(int i, T* normed, float value, float gain,
                                          float& squares) {
    hand_over(normed + packed_at<kGroups>(products.token, i),
              from_float<T>(value * gain * kUnscaled<T>));
    squares += value * value;
  }

  // Of this CTA, for every token.
  __device__ __forceinline__ void hand_on_squares(float* to, float squares) {
#pragma unroll
    for (int d = kTileRows / 2; d > 0; d /= 2) squares += __shfl_xor_sync(~0u, squares, d);
    if (products.row == 0 && products.token < p.tokens) {
      hand_over(to + products.token * kMostPersistentCtas + blockIdx.x, squares);
    }
  }

  // Of all CTAs, for the tokens of a warp; a lane's.
  struct Squares {
    static constexpr int kEach = kMostPersistentCtas / 32;
    float of[kGroups][kEach];
  };

  template <typename Use>
  __device__ __forceinline__ void each_square(float* from, Use&& use) const {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int token = group * 8 + threadIdx.x / 32;
#pragma unroll
      for (int i = 0; i < Squares::kEach; ++i) {
        const int cta = i * 32 + threadIdx.x % 32;
        if (token < p.tokens && cta < gridDim.x) {
          use(group, i, from + token * kMostPersistentCtas + cta);
        }
      }
    }
  }

  __device__ __forceinline__ void ask_for_squares(Squares& squares, float* from) const {
    each_square(from, [&](int group, int i, const float* at) { look(squares.of[group][i], at); });
  }

  // The scales can be read after the next barrier.
  __device__ __forceinline__ void take_in_squares(Squares& squares, float* from) {
    SpinLimit limit;
    bool lacks_one;
    do {
      limit.check();
      lacks_one = false;
      each_square(from, [&](int group, int i, const float* at) {
        if (!lacks(squares.of[group][i])) return;
        lacks_one = true;
        look(squares.of[group][i], at);
      });
    } while (__any_sync(~0u, lacks_one));
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      float sum = 0.f;
#pragma unroll
      for (float square : squares.of[group]) sum += square;
      const float scale = rsqrtf(warp_sum(sum) / p.hidden + p.eps) / kUnscaled<T>;
      if (threadIdx.x % 32 == 0) sm.scales[group * 8 + threadIdx.x / 32] = scale;
    }
  }

  __device__ __forceinline__ void attend(const PersistentLayer& weights, int layer) {
    const PersistentCaches& caches = p.caches[layer];
    const Rows rows(p, layer);
    attention.run({rows.qkv(), rows.attended(), rows.parts(), weights.q_norm, weights.k_norm,
                   static_cast<T*>(caches.k), static_cast<T*>(caches.v)});
  }
};

}  // namespace sluice::persistent
