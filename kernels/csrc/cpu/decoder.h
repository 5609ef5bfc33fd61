// All layers of a Llama-like decoder in one go, for steps of short chunks.
//
// A thread takes some sequences through all layers, so that threads meet once a step and not after
// every op. The price is that every thread reads all weights: fit for models that a cache holds.

#pragma once

#include <algorithm>
#include <vector>

#include "cpu/attention.h"
#include "cpu/linear.h"
#include "cpu/rows.h"

extern "C" {

// Field for field the structs of kernels/cpu.py.
struct DecoderLayer {
  const float *input_norm, *attention_norm;  // [hidden]
  Linear qkv, output, gate_up, down;
};

struct Decoder {
  const DecoderLayer* layers;
  const float* norm;     // [hidden]
  const float* cos_sin;  // [positions, head_dim]
  int64_t num_layers, num_q_heads, num_kv_heads, head_dim;
  float eps, scale;
};
}

namespace {

constexpr int64_t kShareRows = 16;

// Sequences [first, last) with their `rows` tokens, which follow one another.
struct Share {
  int64_t first, last, first_token, rows;
};

// Shares as even as whole sequences allow, as few as fit, at least one a thread.
std::vector<Share> share_out(const AttentionStep& step, int64_t num_threads) {
  int64_t num_tokens = 0;
  for (int64_t i = 0; i < step.num_sequences; ++i) num_tokens += step.query_lens[i];
  const int64_t rounds = (num_tokens + kShareRows * num_threads - 1) / (kShareRows * num_threads);
  const int64_t target = (num_tokens + rounds * num_threads - 1) / (rounds * num_threads);
  std::vector<Share> shares;
  for (int64_t i = 0; i < step.num_sequences; ++i) {
    const int64_t rows = step.query_lens[i];
    if (shares.empty() || shares.back().rows + rows > target)
      shares.push_back({i, i, step.first_token[i], 0});
    shares.back().last = i + 1;
    shares.back().rows += rows;
  }
  return shares;
}

struct DecoderScratch {
  std::vector<float> normed, wide, narrow, delta;
  std::vector<Vector> attention;

  void resize(int64_t rows, const DecoderLayer& layer) {
    const int64_t hidden = layer.qkv.in_features;
    normed.resize(rows * hidden);
    delta.resize(rows * hidden);
    wide.resize(rows * std::max(layer.qkv.out_features, layer.gate_up.out_features));
    narrow.resize(rows * std::max(layer.output.in_features, layer.down.in_features));
  }
};

// wide (queries, keys, values) to narrow (what attention gives).
void attend_share(const Decoder& decoder, const LayerCache& cache, int64_t block_size,
                  const AttentionStep& step, const int64_t* positions, const int64_t* slots,
                  const Share& share, Attend attend, DecoderScratch& scratch) {
  const int64_t dim = decoder.head_dim, q_width = decoder.num_q_heads * dim;
  const int64_t kv_width = decoder.num_kv_heads * dim, stride = q_width + 2 * kv_width;
  const RopeShape rope{decoder.num_q_heads, decoder.num_kv_heads, dim, dim, nullptr, nullptr, 0.0f};
  for (int64_t row = 0; row < share.rows; ++row) {
    float* q = scratch.wide.data() + row * stride;
    const int64_t token = share.first_token + row;
    rope_and_cache_row(q, q + q_width, q + q_width + kv_width, cache,
                       decoder.cos_sin + positions[token] * dim, slots[token], rope);
  }
  const AttentionShape shape{decoder.num_q_heads, decoder.num_kv_heads, dim, block_size, stride,
                             decoder.scale,       0,                    0.0f};
  for (int64_t i = share.first; i < share.last; ++i) {
    const int64_t row = step.first_token[i] - share.first_token;
    attend(scratch.narrow.data() + row * q_width, scratch.wide.data() + row * stride, cache, step,
           shape, i, 0, decoder.num_kv_heads, scratch.attention);
  }
}

void decode_share(float* out, float* hidden, const Decoder& decoder, const LayerCache* caches,
                  int64_t block_size, const AttentionStep& step, const int64_t* positions,
                  const int64_t* slots, float* const* aux_states, int64_t aux_stride, const Share& share,
                  Attend attend, DecoderScratch& scratch) {
  const int64_t rows = share.rows, width = decoder.layers[0].qkv.in_features;
  scratch.resize(rows, decoder.layers[0]);
  float *normed = scratch.normed.data(), *wide = scratch.wide.data();
  float *narrow = scratch.narrow.data(), *delta = scratch.delta.data();
  float* residual = hidden + share.first_token * width;
  const auto norm = [&](float* to, float* x, float* sum, const float* weight) {
    for (int64_t row = 0; row < rows; ++row)
      rms_norm_row(to + row * width, x + row * width, sum ? sum + row * width : nullptr, weight,
                   width, decoder.eps);
  };
  for (int64_t i = 0; i < decoder.num_layers; ++i) {
    const DecoderLayer& layer = decoder.layers[i];
    if (i == 0)
      norm(normed, residual, nullptr, layer.input_norm);
    else
      norm(normed, delta, residual, layer.input_norm);
    if (aux_states && aux_states[i])
      for (int64_t row = 0; row < rows; ++row)
        std::copy_n(residual + row * width, width,
                    aux_states[i] + (share.first_token + row) * aux_stride);
    linear_rows(wide, normed, layer.qkv, rows);
    attend_share(decoder, caches[i], block_size, step, positions, slots, share, attend, scratch);
    linear_rows(delta, narrow, layer.output, rows);
    norm(normed, delta, residual, layer.attention_norm);
    linear_rows(wide, normed, layer.gate_up, rows);
    const int64_t inner = layer.down.in_features;
    for (int64_t row = 0; row < rows; ++row)
      silu_mul_row(narrow + row * inner, wide + row * 2 * inner, wide + row * 2 * inner + inner,
                   inner);
    linear_rows(delta, narrow, layer.down, rows);
  }
  norm(out + share.first_token * width, delta, residual, decoder.norm);
}

}  // namespace
