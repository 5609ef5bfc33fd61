// The engine's hot ops for CPUs, in float32. Raw pointers, no torch headers: compiles in seconds.
//
// Every result is a function of its own row, computed in one fixed order, so it does not depend on
// the batch, on how a prompt was cut into chunks, or on the number of threads. A step gives the
// same bits op by op and fused (sluice_decoder), which share the functions of the headers.

#include "cpu/attention.h"
#include "cpu/decoder.h"
#include "cpu/linear.h"
#include "cpu/rows.h"
#include "cpu/sampling.h"

extern "C" {

// x, residual (or null; becomes the sum), out: [rows, width]; weight: [width].
void sluice_rms_norm(float* out, const float* x, float* residual, const float* weight, int64_t rows,
                     int64_t width, float eps, int64_t num_threads) {
#pragma omp parallel for num_threads(num_threads) if (rows * width > kParallelWork)
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = row * width;
    rms_norm_row(out + at, x + at, residual ? residual + at : nullptr, weight, width, eps);
  }
}

// gate_up: [rows, 2 * width], out: [rows, width].
void sluice_silu_mul(float* out, const float* gate_up, int64_t rows, int64_t width,
                     int64_t num_threads) {
#pragma omp parallel for num_threads(num_threads) if (rows * width > kParallelWork / 4)
  for (int64_t row = 0; row < rows; ++row) {
    const float* gate = gate_up + row * 2 * width;
    silu_mul_row(out + row * width, gate, gate + width, width);
  }
}

// q, k, v: heads of a token contiguous, `stride` elements between tokens. q is rotated in place, k
// on its way to its slot. cos_sin: [positions, rotary_dim], cosines first. q_norm, k_norm:
// [head_dim] or null.
void sluice_rope_and_cache(float* q, const float* k, const float* v, const LayerCache* cache,
                           const float* cos_sin, const int64_t* positions, const int64_t* slots,
                           int64_t num_tokens, int64_t num_q_heads, int64_t num_kv_heads,
                           int64_t head_dim, int64_t rotary_dim, const float* q_norm,
                           const float* k_norm, float eps, int64_t stride, int64_t num_threads) {
  const RopeShape shape{num_q_heads, num_kv_heads, head_dim, rotary_dim, q_norm, k_norm, eps};
#pragma omp parallel for num_threads(num_threads) if (num_tokens * stride > kParallelWork)
  for (int64_t token = 0; token < num_tokens; ++token)
    rope_and_cache_row(q + token * stride, k + token * stride, v + token * stride, *cache,
                       cos_sin + positions[token] * rotary_dim, slots[token], shape);
}

// out: [num_tokens, num_q_heads, head_dim].
// Only the rows of the step's sequences are written.
void sluice_paged_attention(float* out, const float* q, const LayerCache* cache,
                            const AttentionStep* step, int64_t num_q_heads, int64_t num_kv_heads,
                            int64_t head_dim, int64_t block_size, int64_t q_stride, float scale,
                            int64_t window, float softcap, const float* sinks,
                            int64_t num_threads) {
  const AttentionShape shape{num_q_heads, num_kv_heads, head_dim, block_size, q_stride,
                             scale,       window,       softcap,  sinks};
  const Attend attend = attend_for(head_dim);
  const AttentionParts parts(step->query_lens, step->num_sequences, num_kv_heads, num_threads);
#pragma omp parallel num_threads(num_threads) if (step->num_sequences > 1)
  {
    static thread_local AttentionMemory scratch;
#pragma omp for schedule(dynamic)
    for (int64_t item = 0; item < parts.num_items; ++item) {
      const int64_t sequence = parts.sequence(item), token = step->first_token[sequence];
      attend(out + token * num_q_heads * head_dim, q + token * q_stride, *cache, *step, shape,
             sequence, parts.first_head(item), parts.num_heads, scratch);
    }
  }
}

// logits: [num, vocab]; rows (places in the table; -1 = padding), positions: [num]. The draw goes to
// tokens[row, position] and host, too, where these are not null.
void sluice_sample_rows(int64_t* out, int64_t* tokens, int64_t* host, const float* logits,
                        const sluice::SamplingRow* table, const int* rows, const int* positions,
                        int64_t tokens_stride, int64_t num, int64_t vocab, int64_t num_threads) {
  bool is_greedy = true;
  for (int64_t i = 0; i < num; ++i)
    is_greedy &= rows[i] < 0 || !(table[rows[i]].temperature > 0.0f);
  // Without noise a token takes so little time that to wake threads rarely pays.
  const int64_t work = num * vocab / (is_greedy ? 16 : 1);
#pragma omp parallel num_threads(num_threads) if (num > 1 && work > kParallelWork)
  {
    static thread_local SamplingScratch scratch;
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < num; ++i) {
      if (rows[i] < 0) continue;
      const Drawing how{table[rows[i]], positions[i]};
      out[i] = sample_row(logits + i * vocab, vocab, how, scratch);
      if (tokens) tokens[rows[i] * tokens_stride + positions[i]] = out[i];
      if (host) host[i] = out[i];
    }
  }
}

// logits: [*, vocab], tokens: [*, stride]; where: [4, rows], strengths: [3, rows], see
// reference.apply_penalties.
void sluice_apply_penalties(float* logits, const int64_t* tokens, const int64_t* where,
                            const float* strengths, int64_t rows, int64_t vocab, int64_t stride) {
  static thread_local std::vector<int32_t> counts;
  if (static_cast<int64_t>(counts.size()) < vocab) counts.resize(vocab);
  for (int64_t i = 0; i < rows; ++i) {
    const PenaltyRow how{strengths[i], strengths[rows + i], strengths[2 * rows + i],
                         where[2 * rows + i], where[3 * rows + i]};
    penalize_row(logits + where[i] * vocab, tokens + where[rows + i] * stride, how, counts);
  }
}

// packed: see pack_weight; weight: [out_features, in_features].
void sluice_pack(float* packed, const float* weight, int64_t out_features, int64_t in_features) {
  pack_weight(packed, weight, out_features, in_features);
}

int64_t sluice_packed_size(int64_t out_features, int64_t in_features) {
  return (out_features + kPanel - 1) / kPanel * kPanel * in_features;
}

// x: [rows, in_features], out: [rows, out_features].
void sluice_linear(float* out, const float* x, const Linear* linear, int64_t rows,
                   int64_t num_threads) {
  const int64_t num_panels = (linear->out_features + kPanel - 1) / kPanel;
  const int64_t num_blocks = (rows + kRowBlock - 1) / kRowBlock;
  const int64_t work = rows * linear->in_features * linear->out_features;
#pragma omp parallel for collapse(2) num_threads(num_threads) if (work > kParallelProduct)
  for (int64_t block = 0; block < num_blocks; ++block)
    for (int64_t panel = 0; panel < num_panels; ++panel) {
      const int64_t first = block * kRowBlock;
      linear_panel(out + first * linear->out_features, x + first * linear->in_features, *linear,
                   std::min(rows - first, kRowBlock), panel);
    }
}

// All layers of a decoder for a step of short chunks; see cpu/decoder.h. hidden: [tokens, hidden],
// the embeddings, overwritten; out: the same shape, normed. aux_states: null, or for each layer null or
// [tokens, hidden], which becomes the layer's input; from token to token aux_stride further.
void sluice_decoder(float* out, float* hidden, const Decoder* decoder, const LayerCache* caches,
                    int64_t block_size, const AttentionStep* step, const int64_t* positions,
                    const int64_t* slots, float* const* aux_states, int64_t aux_stride,
                    int64_t num_threads) {
  const Attend attend = attend_for(decoder->head_dim);
  const int64_t width = decoder->layers[0].qkv.in_features;
  const std::vector<Share> shares = share_out(*step, num_threads);
  // decode_layers shares its loops out among the threads of the region that calls it.
  const auto decode = [&](const Share& share, int64_t num_together) {
    static thread_local DecoderScratch own;
    DecoderScratch& scratch = own;  // of this thread, for all that compute the share
    const int64_t first = share.first_token;
    scratch.resize(share.rows, decoder->layers[0]);
    const DecoderStep all{out + first * width, hidden + first * width, caches, block_size,
                          *step,               positions + first,      slots + first,
                          aux_states,          aux_stride,             first,  attend, share};
#pragma omp parallel num_threads(num_together)
    decode_layers(*decoder, all, scratch);
  };
  if (shares.size() == 1) {  // Not inside of another region: only threads of the outermost are kept.
    decode(shares[0], num_threads);
    return;
  }
#pragma omp parallel for schedule(dynamic) num_threads(num_threads)
  for (size_t i = 0; i < shares.size(); ++i) decode(shares[i], 1);
}
}
