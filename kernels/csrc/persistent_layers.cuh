// The phases of a layer, as the warps of a CTA that multiply go through them: projections of the
// queries, keys and values; attention; its output's projection; gates and ups; the projection down.
// After each, all CTAs wait for each other.
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
    PersistentLayer layer = p.layers[0];
#pragma unroll 1
    for (int i = 0; i < p.num_layers; ++i) {
      const int next = min(i + 1, p.num_layers - 1);
      const T* x = i == 0 ? static_cast<const T*>(p.x) : stream;
      T* out = i + 1 == p.num_layers ? static_cast<T*>(p.out) : stream;
      project(i, layer, x);
      attend(i, layer);
      add(product_of(p, layer.output, i, kOutput), attended, x, middle,
          [&] { await(&p.counts->attended, (i + 1) * p.kv_heads); });
      gate(i, layer);
      const Product down = product_of(p, layer.down, i, kDown);
      layer = p.layers[next];
      add(down, activated, middle, out, [&] { await_phase(); });
    }
    leave();
  }

 private:
  const PersistentDecoder& p;
  Shared& sm;
  Products<T> products;
  TokenAttention<T, D> attention;
  T *stream, *middle, *activated, *attended, *qkv;
  int phases = 0;  // that have ended

  // Of all of this CTA.
  __device__ __forceinline__ void end_phase() {
    ++phases;
    sync_consumers();
    if (threadIdx.x == 0) publish(&p.counts->phases);
  }

  __device__ __forceinline__ void await(const int* count, int target) {
    if (threadIdx.x == 0) await_count(count, target);
    sync_consumers();
  }

  __device__ __forceinline__ void await_phase() { await(&p.counts->phases, phases * gridDim.x); }

  // Multiplies x, normed, once all CTAs have written it.
  __device__ __forceinline__ void multiply_normed(const Product& product, const T* x, const void* norm) {
    Piece weight[kNormPasses], normed[kNormPasses];
#pragma unroll
    for (int i = 0; i < kNormPasses; ++i) {
      weight[i] = products.template load<false>(norm, i, product.k);
    }
    await_phase();
#pragma unroll
    for (int i = 0; i < kNormPasses; ++i) {
      normed[i] = products.template load<true>(x, i, product.k);
    }
    products.norm(normed, weight, product.k, p.eps);
    products.multiply(product, [&](int pass) { return pass == 0 ? normed[0] : normed[1]; });
  }

  __device__ __forceinline__ void project(int i, const PersistentLayer& layer, const T* x) {
    const Product product = product_of(p, layer.qkv, i, kQkv);
    multiply_normed(product, x, layer.input_norm);
    const Share share = Share::of(product);
    const T* bias = static_cast<const T*>(layer.qkv_bias);
    for (int row = threadIdx.x; row < share.size(); row += kConsumers) {
      const int output = share.begin + row;
      const float b = bias ? to_float(bias[output]) : 0.f;
      qkv[output] = from_float<T>(products.sum(row) + b);
    }
    end_phase();
  }

  __device__ __forceinline__ void attend(int i, const PersistentLayer& layer) {
    const PersistentCaches& caches = p.caches[i];
    attention.begin({qkv, attended, layer.q_norm, layer.k_norm, static_cast<T*>(caches.k),
                     static_cast<T*>(caches.v)},
                    i);
    await_phase();
    if (!attention.has_unit() || !attention.finish(i)) return;
    sync_consumers();
    if (threadIdx.x == 0) publish(&p.counts->attended);
  }

  // out = residual + x weight^T, once x is there. The residual has been there before.
  template <typename Await>
  __device__ __forceinline__ void add(const Product& product, const T* x, const T* residual, T* out,
                      Await&& await_x) {
    const Share share = Share::of(product);
    const int row = threadIdx.x, output = share.begin + row;
    const bool has_row = row < share.size();
    const float before = has_row ? to_float(__ldcg(residual + output)) : 0.f;
    await_x();
    products.multiply(product, [&](int pass) {
      return products.template load<true>(x, pass, product.k);
    });
    if (has_row) out[output] = from_float<T>(before + rounded<T>(products.sum(row)));
    end_phase();
  }

  __device__ __forceinline__ void gate(int i, const PersistentLayer& layer) {
    const Product product = product_of(p, layer.gate_up, i, kGateUp);
    multiply_normed(product, middle, layer.attended_norm);
    const Share share = Share::of(product);
    for (int pair = threadIdx.x; pair < share.size(); pair += kConsumers) {
      const int row = pair / 8 * kTileRows + pair % 8;
      const float x = rounded<T>(products.sum(row)), up = rounded<T>(products.sum(row + 8));
      const float active = rounded<T>(x / (1.f + __expf(-x)));
      activated[share.begin + pair] = from_float<T>(active * up);
    }
    end_phase();
  }

  // The last CTA makes all counts ready for the next launch.
  __device__ __forceinline__ void leave() {
    if (threadIdx.x != 0 || arrive(&p.counts->left) != static_cast<int>(gridDim.x) - 1) return;
    p.counts->phases = p.counts->attended = p.counts->left = 0;
    for (int head = 0; head < p.kv_heads; ++head) p.counts->heads[head] = 0;
  }
};

}  // namespace sluice::persistent
