// All layers of a Llama-like decoder in one go, for steps of short chunks.
//
// For few tokens, the threads go through the layers together: they share out the rows of a norm, the
// panels of a product and the heads of attention, and wait for each other after each of these. For
// more tokens, each takes some of the sequences through all layers alone, so that threads meet once
// a step: a thread that another program interrupts then holds up nobody.

#pragma once

#include <omp.h>

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

constexpr int64_t kShareRows = 16;  // Up to so many the threads go together.

// Sequences [first, last) with their `rows` tokens, which follow one another.
struct Share {
  int64_t first, last, first_token, rows;
};

// Shares as even as whole sequences allow, as few as fit; one for all up to kShareRows tokens.
std::vector<Share> share_out(const AttentionStep& step, int64_t num_threads) {
  int64_t num_tokens = 0;
  for (int64_t i = 0; i < step.num_sequences; ++i) num_tokens += step.query_lens[i];
  if (num_tokens <= kShareRows) num_threads = 1;
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

// What the layers hand on to each other, of all rows.
struct DecoderScratch {
  std::vector<float> normed, wide, narrow, delta;

  void resize(int64_t rows, const DecoderLayer& layer) {
    const int64_t hidden = layer.qkv.in_features;
    normed.resize(rows * hidden);
    delta.resize(rows * hidden);
    wide.resize(rows * std::max(layer.qkv.out_features, layer.gate_up.out_features));
    narrow.resize(rows * std::max(layer.output.in_features, layer.down.in_features));
  }
};

// What a share computes.
struct DecoderStep {
  float *out, *hidden;  // [rows, hidden], as all below from the share's first token on
  const LayerCache* caches;
  int64_t block_size;
  const AttentionStep& attention;  // of the whole step
  const int64_t *positions, *slots;
  float* const* aux_states;  // null, or for each layer null or rows aux_stride apart
  int64_t aux_stride, aux_first;  // aux_first: the share's first row there
  Attend attend;
  Share share;
};

// out = x . weight. Called by all threads of a parallel region, as everything below.
void shared_linear(float* out, const float* x, const Linear& linear, int64_t rows) {
#pragma omp for schedule(static)
  for (int64_t panel = 0; panel < (linear.out_features + kPanel - 1) / kPanel; ++panel)
    linear_panel(out, x, linear, rows, panel);
}

// x: [rows, width]; see rms_norm_row.
void shared_norm(float* out, const float* x, float* residual, const float* weight, int64_t rows,
                 int64_t width, float eps) {
#pragma omp for schedule(static)
  for (int64_t row = 0; row < rows; ++row)
    rms_norm_row(out + row * width, x + row * width, residual ? residual + row * width : nullptr,
                 weight, width, eps);
}

// wide (queries, keys, values) to narrow (what attention gives).
void shared_attention(const Decoder& decoder, const LayerCache& cache, const DecoderStep& step,
                      DecoderScratch& scratch) {
  static thread_local AttentionMemory memory;
  const int64_t dim = decoder.head_dim, q_width = decoder.num_q_heads * dim;
  const int64_t kv_width = decoder.num_kv_heads * dim, stride = q_width + 2 * kv_width;
  const RopeShape rope{decoder.num_q_heads, decoder.num_kv_heads, dim, dim, nullptr, nullptr, 0.0f};
#pragma omp for schedule(static)
  for (int64_t row = 0; row < step.share.rows; ++row) {
    float* q = scratch.wide.data() + row * stride;
    rope_and_cache_row(q, q + q_width, q + q_width + kv_width, cache,
                       decoder.cos_sin + step.positions[row] * dim, step.slots[row], rope);
  }
  const AttentionShape shape{decoder.num_q_heads, decoder.num_kv_heads, dim, step.block_size, stride,
                             decoder.scale,       0,                    0.0f};
  const int64_t num_sequences = step.share.last - step.share.first;
  const AttentionParts parts(step.attention.query_lens + step.share.first, num_sequences,
                             decoder.num_kv_heads, omp_get_num_threads());
#pragma omp for schedule(dynamic)
  for (int64_t item = 0; item < parts.num_items; ++item) {
    const int64_t sequence = step.share.first + parts.sequence(item);
    const int64_t row = step.attention.first_token[sequence] - step.share.first_token;
    step.attend(scratch.narrow.data() + row * q_width, scratch.wide.data() + row * stride, cache,
                step.attention, shape, sequence, parts.first_head(item), parts.num_heads, memory);
  }
}

void decode_layers(const Decoder& decoder, const DecoderStep& step, DecoderScratch& scratch) {
  const int64_t rows = step.share.rows, width = decoder.layers[0].qkv.in_features;
  float *normed = scratch.normed.data(), *wide = scratch.wide.data();
  float *narrow = scratch.narrow.data(), *delta = scratch.delta.data(), *residual = step.hidden;
  for (int64_t i = 0; i < decoder.num_layers; ++i) {
    const DecoderLayer& layer = decoder.layers[i];
    shared_norm(normed, i == 0 ? residual : delta, i == 0 ? nullptr : residual, layer.input_norm,
                rows, width, decoder.eps);
    if (step.aux_states && step.aux_states[i])
#pragma omp for schedule(static)
      for (int64_t row = 0; row < rows; ++row)
        std::copy_n(residual + row * width, width,
                    step.aux_states[i] + (step.aux_first + row) * step.aux_stride);
    shared_linear(wide, normed, layer.qkv, rows);
    shared_attention(decoder, step.caches[i], step, scratch);
    shared_linear(delta, narrow, layer.output, rows);
    shared_norm(normed, delta, residual, layer.attention_norm, rows, width, decoder.eps);
    shared_linear(wide, normed, layer.gate_up, rows);
    const int64_t inner = layer.down.in_features;
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; ++row)
      silu_mul_row(narrow + row * inner, wide + row * 2 * inner, wide + row * 2 * inner + inner,
                   inner);
    shared_linear(delta, narrow, layer.down, rows);
  }
  shared_norm(step.out, delta, residual, decoder.norm, rows, width, decoder.eps);
}

}  // namespace
