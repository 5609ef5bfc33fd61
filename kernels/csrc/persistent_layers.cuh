// The phases of a layer, as the warps of a CTA that multiply go through them: each ends with a
// product, of which a thread finishes one output. Before a phase's x is read all CTAs have ended the
// phase before; what does not depend on it is asked for while they do.
#pragma once

#include "persistent_attention.cuh"

namespace sluice::persistent {

template <typename T, int D>
class Layers {
 public:
  __device__ __forceinline__ Layers(const PersistentDecoder& params, Shared& shared)
      : p(params), sm(shared), products(shared), attention(params, shared) {
    T* rows = static_cast<T*>(p.rows);
    stream = rows;
    middle = stream + p.hidden;
    activated = middle + p.hidden;
    attended = activated + p.intermediate;
    qkv = attended + p.q_heads * D;
  }

  __device__ __forceinline__ void run() {
#pragma unroll 1
    for (int layer = 0; layer < p.num_layers; ++layer) {
      const PersistentLayer& weights = p.layers[layer];
      if (layer == 0) input = static_cast<const T*>(p.x);
      output = layer + 1 == p.num_layers ? static_cast<T*>(p.out) : stream;
#pragma unroll 1
      for (int which = 0; which < kProducts; ++which) phase(weights, layer, which);
      input = output;
    }
    if (threadIdx.x == 0) leave();
  }

 private:
  const PersistentDecoder& p;
  Shared& sm;
  Products<T> products;
  TokenAttention<T, D> attention;
  T *stream, *middle, *activated, *attended, *qkv;
  const T* input;  // the layer's, and what it makes
  T* output;
  int phases = 0;  // that have ended

  __device__ __forceinline__ void phase(const PersistentLayer& weights, int layer, int which) {
    const Product product = product_of(p, nullptr, layer, which);
    const Share share = Share::of(product);
    const bool is_normed = which == kQkv || which == kGateUp;
    const void* norm = which == kQkv ? weights.input_norm : weights.attended_norm;
    Piece x[kNormPasses], norms[kNormPasses] = {};
#pragma unroll
    for (int i = 0; i < kNormPasses; ++i) {
      if (is_normed) norms[i] = products.template load<false>(norm, i, product.k);
    }
    const float early = load_early(weights, which, share);
    if (which == kOutput) {
      attend(weights, layer);
      await(&p.counts->attended, (layer + 1) * p.kv_heads);
    } else {
      await_phase();
    }
    const T* from = which == kQkv      ? input
                    : which == kOutput ? attended
                    : which == kGateUp ? middle
                                       : activated;
#pragma unroll
    for (int i = 0; i < kNormPasses; ++i) {
      x[i] = products.template load<true>(from, i, product.k);
    }
    if (is_normed) products.norm(x, norms, product.k, p.eps);
    products.multiply(product, share.size(), from, x);
    if (threadIdx.x < share.size()) finish(which, share.begin + threadIdx.x, early);
    ++phases;
    sync_consumers();
    if (threadIdx.x == 0) publish(&p.counts->phases);
  }

  // What is added to this thread's output, which is there before the phase begins.
  __device__ __forceinline__ float load_early(const PersistentLayer& weights, int which,
                                              const Share& share) const {
    if (threadIdx.x >= share.size() || which == kGateUp) return 0.f;
    const T* from = which == kQkv      ? static_cast<const T*>(weights.qkv_bias)
                    : which == kOutput ? input
                                       : middle;
    return from ? to_float(__ldcg(from + share.begin + threadIdx.x)) : 0.f;
  }

  __device__ __forceinline__ void finish(int which, int at, float early) {
    const int i = threadIdx.x;
    if (which == kQkv) {
      qkv[at] = from_float<T>(products.sum(i) + early);
    } else if (which == kGateUp) {
      const int row = i / 8 * kTileRows + i % 8;
      const float gate = rounded<T>(products.sum(row)), up = rounded<T>(products.sum(row + 8));
      const float active = rounded<T>(gate / (1.f + __expf(-gate)));
      activated[at] = from_float<T>(active * up);
    } else {
      const float sum = early + rounded<T>(products.sum(i));
      (which == kOutput ? middle : output)[at] = from_float<T>(sum);
    }
  }

  __device__ __forceinline__ void await(const int* count, int target) {
    if (threadIdx.x == 0) await_count(count, target);
    sync_consumers();
  }

  __device__ __forceinline__ void await_phase() {
    await(&p.counts->phases, phases * gridDim.x);
  }

  __device__ __forceinline__ void attend(const PersistentLayer& weights, int layer) {
    const PersistentCaches& caches = p.caches[layer];
    attention.begin({qkv, attended, weights.q_norm, weights.k_norm, static_cast<T*>(caches.k),
                     static_cast<T*>(caches.v)},
                    layer);
    await_phase();
    if (!attention.has_unit() || !attention.finish(layer)) return;
    sync_consumers();
    if (threadIdx.x == 0) publish(&p.counts->attended);
  }

  // The last CTA makes all counts ready for the next launch.
  __device__ __forceinline__ void leave() {
    if (arrive(&p.counts->left) != static_cast<int>(gridDim.x) - 1) return;
    p.counts->phases = p.counts->attended = p.counts->left = 0;
    for (int head = 0; head < p.kv_heads; ++head) p.counts->heads[head] = 0;
  }
};

}  // namespace sluice::persistent
