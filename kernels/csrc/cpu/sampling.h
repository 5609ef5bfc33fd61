// Sampling a row of logits, and the penalties before it, as kernels/reference.py defines them.
//
// Top-k and top-p both keep a beginning of the tokens ordered by falling score (of equals the
// highest id first), so a histogram tells where the beginning ends, and only what lies before is
// sorted. The noise falls with its random word, so a cheap bound spares nearly all tokens the
// logarithms. Sums and logarithms that decide which token is drawn are taken in double: no other
// way of adding them up comes to another decision, but for one case in billions.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "sampling/sampling_row.cuh"

namespace {

constexpr int kBinsPerNat = 32;
constexpr int kBins = 26 * kBinsPerNat;  // noise lifts no further: GUMBEL_MAX - GUMBEL_MIN
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// How a token is drawn: the request's parameters, and the token's index in the request.
struct Drawing : sluice::SamplingRow {
  int64_t position;
};

struct Candidate {
  float score;
  int32_t id;
};

struct SamplingScratch {
  std::vector<float> scores;
  std::vector<Candidate> candidates;
  int32_t counts[kBins + 1];  // the last one: all that is hopeless
  double masses[kBins + 1];
};

// exp(x) for x <= 0, within a few ulp; a polynomial so that loops over it vectorise.
inline double exp_nonpositive_double(double x) {
  x = std::max(x, -700.0);
  const double n = std::rint(x * 1.4426950408889634);
  const double r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r * r + r + 1.0;
  const int64_t bits = static_cast<int64_t>(static_cast<int32_t>(n) + 1023) << 52;
  double power;
  std::memcpy(&power, &bits, sizeof power);
  return p * power;
}

constexpr int kGroups = 16;            // worked on side by side
constexpr int kTile = 4 * kGroups;     // tokens; a group has four

// The random words of the tokens [4 * group, 4 * (group + kGroups)): Philox4x32-10 of philox.py.
inline void random_words(uint32_t* words, uint64_t seed, uint32_t position, uint32_t group) {
  uint32_t c0[kGroups], c1[kGroups], c2[kGroups], c3[kGroups];
  for (int i = 0; i < kGroups; ++i) c0[i] = group + i, c1[i] = position, c2[i] = c3[i] = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
#pragma omp simd
    for (int i = 0; i < kGroups; ++i) {
      const uint64_t first = uint64_t{0xD2511F53} * c0[i], second = uint64_t{0xCD9E8D57} * c2[i];
      c0[i] = static_cast<uint32_t>(second >> 32) ^ c1[i] ^ k0;
      c2[i] = static_cast<uint32_t>(first >> 32) ^ c3[i] ^ k1;
      c1[i] = static_cast<uint32_t>(second);
      c3[i] = static_cast<uint32_t>(first);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int i = 0; i < kGroups; ++i) {
    words[4 * i] = c0[i];
    words[4 * i + 1] = c1[i];
    words[4 * i + 2] = c2[i];
    words[4 * i + 3] = c3[i];
  }
}

inline uint32_t random_word(uint64_t seed, uint32_t position, uint32_t id) {
  uint32_t c0 = id / 4, c1 = position, c2 = 0, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53} * c0, second = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(second >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(first >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(second);
    c3 = static_cast<uint32_t>(first);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const uint32_t words[] = {c0, c1, c2, c3};
  return words[id % 4];
}

inline float gumbel(uint32_t word) {
  const float uniform =
      std::min((static_cast<float>(word) + 0.5f) * 0x1p-32f, 1.0f - 0x1p-24f);
  return static_cast<float>(-std::log(-std::log1p(-static_cast<double>(uniform))));
}

// No less than gumbel(word), and at most 0.07 more where that matters. With u the uniform number,
// -log(-log1p(-u)) <= -log(u), and the bits of a float are its binary logarithm, rounded down.
inline float gumbel_bound(uint32_t word) {
  const float value = static_cast<float>(word) + 0.5f;
  int32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return (159.0f - static_cast<float>(bits) * 0x1p-23f) * 0.69314718f + 1e-3f;
}

// The token with the highest score plus noise seen so far; of equals the lowest id.
struct Draw {
  float value = kMinusInfinity;
  int64_t id = 0;

  void see(float score, uint32_t word, int64_t token) {
    if (!(score + gumbel_bound(word) >= value)) return;
    const float noisy = score + gumbel(word);
    if (noisy > value || (noisy == value && token < id)) value = noisy, id = token;
  }
};

// best: a token that stays, and one of the likeliest.
int64_t draw_from_all(const float* scores, int64_t vocab, const Drawing& how, int64_t best) {
  Draw draw;
  draw.see(0.0f, random_word(how.seed, how.position, best), best);  // a good one to begin with
  uint32_t words[kTile];
  float bounds[kTile];
  for (int64_t start = 0; start < vocab; start += kTile) {
    const int size = std::min<int64_t>(kTile, vocab - start);
    random_words(words, how.seed, how.position, start / 4);
    float highest = kMinusInfinity;
#pragma omp simd reduction(max : highest)
    for (int i = 0; i < size; ++i) {
      bounds[i] = scores[start + i] + gumbel_bound(words[i]);
      highest = std::max(highest, bounds[i]);
    }
    if (highest < draw.value) continue;
    for (int i = 0; i < size; ++i) {
      if (bounds[i] >= draw.value) draw.see(scores[start + i], words[i], start + i);
    }
  }
  return draw.id;
}

// The candidates are sorted: the first one stays whatever the limits are.
int64_t draw_from(const Candidate* candidates, int64_t num, float floor, const Drawing& how,
                  SamplingScratch& scratch, int64_t vocab) {
  if (8 * num > vocab) {
    float* scores = scratch.scores.data();
    std::fill(scores, scores + vocab, kMinusInfinity);
    for (int64_t i = 0; i < num; ++i)
      if (candidates[i].score >= floor) scores[candidates[i].id] = candidates[i].score;
    return draw_from_all(scores, vocab, how, candidates[0].id);
  }
  Draw draw;
  for (int64_t i = 0; i < num; ++i) {
    const Candidate& c = candidates[i];
    if (c.score >= floor) draw.see(c.score, random_word(how.seed, how.position, c.id), c.id);
  }
  return draw.id;
}

inline int bin_of(float score) {
  const float bin = -score * kBinsPerNat;
  return bin < kBins ? static_cast<int>(bin) : kBins;  // NaN is hopeless, too
}

// Fills the histogram; returns the mass of the row, relative to its best token, if wanted.
double count_bins(const float* scores, int64_t vocab, bool masses, SamplingScratch& scratch) {
  std::fill(std::begin(scratch.counts), std::end(scratch.counts), 0);
  if (!masses) {
    for (int64_t i = 0; i < vocab; ++i) ++scratch.counts[bin_of(scores[i])];
    return 0.0;
  }
  std::fill(std::begin(scratch.masses), std::end(scratch.masses), 0.0);
  double total = 0.0, tile[kTile];
  for (int64_t start = 0; start < vocab; start += kTile) {
    const int size = std::min<int64_t>(kTile, vocab - start);
#pragma omp simd
    for (int i = 0; i < size; ++i) tile[i] = exp_nonpositive_double(scores[start + i]);
    for (int i = 0; i < size; ++i) {
      const int bin = bin_of(scores[start + i]);
      ++scratch.counts[bin];
      scratch.masses[bin] += tile[i];
      total += tile[i];
    }
  }
  return total;
}

// The tokens up to a bin, the best first, of equals the highest id first.
int64_t collect(const float* scores, int64_t vocab, int last_bin, SamplingScratch& scratch) {
  std::vector<Candidate>& found = scratch.candidates;
  found.clear();
  for (int64_t i = 0; i < vocab; ++i) {
    if (bin_of(scores[i]) <= last_bin) found.push_back({scores[i], static_cast<int32_t>(i)});
  }
  std::sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
    return a.score > b.score || (a.score == b.score && a.id > b.id);
  });
  return found.size();
}

// How many of the sorted candidates top-k leaves: ties with the k-th stay.
int64_t cut_top_k(const std::vector<Candidate>& sorted, int64_t top_k) {
  int64_t num = sorted.size();
  if (top_k >= num) return num;
  num = top_k;
  while (num < static_cast<int64_t>(sorted.size()) && sorted[num].score == sorted[top_k - 1].score)
    ++num;
  return num;
}

// How many of the sorted candidates top-p leaves: those before the last one do not reach p.
int64_t cut_top_p(const std::vector<Candidate>& sorted, int64_t num, double target) {
  double before = 0.0;
  for (int64_t i = 0; i < num; ++i) {
    if (i > 0 && !(before < target)) return i;
    before += exp_nonpositive_double(sorted[i].score);
  }
  return num;
}

// The first bin up to which the tokens are as many as `count` or, without one, as likely as `mass`.
int last_bin_for(int64_t count, double mass, const SamplingScratch& scratch) {
  int64_t num = 0;
  double sum = 0.0;
  for (int bin = 0; bin < kBins; ++bin) {
    num += scratch.counts[bin];
    sum += scratch.masses[bin];
    if (count > 0 ? num >= count : sum >= mass) return bin;
  }
  return kBins - 1;
}

int64_t draw_limited(const float* scores, int64_t vocab, const Drawing& how, float floor,
                     SamplingScratch& scratch) {
  const bool limits_k = how.top_k < vocab, limits_p = how.top_p < 1.0f;
  double total = count_bins(scores, vocab, limits_p, scratch);
  // A little more than needed: what decides is the exact cut below.
  const double wanted = how.top_p * total * (1.0 + 1e-9);
  const int last_bin = last_bin_for(limits_k ? how.top_k : 0, wanted, scratch);
  int64_t num = collect(scores, vocab, last_bin, scratch);
  if (limits_k && how.top_k <= num) {
    num = cut_top_k(scratch.candidates, how.top_k);
    total = 0.0;
    if (limits_p)
      for (int64_t i = 0; i < num; ++i)
        total += exp_nonpositive_double(scratch.candidates[i].score);
  }
  if (limits_p) num = cut_top_p(scratch.candidates, num, how.top_p * total);
  return draw_from(scratch.candidates.data(), num, floor, how, scratch, vocab);
}

int64_t sample_row(const float* logits, int64_t vocab, const Drawing& how,
                   SamplingScratch& scratch) {
  float highest = kMinusInfinity;
#pragma omp simd reduction(max : highest)
  for (int64_t i = 0; i < vocab; ++i) highest = std::max(highest, logits[i]);
  int64_t best = std::find(logits, logits + vocab, highest) - logits;
  if (best == vocab) best = 0;  // no numbers at all
  if (!(how.temperature > 0.0f) || !std::isfinite(highest)) return best;

  scratch.scores.resize(vocab);
  float* scores = scratch.scores.data();
#pragma omp simd
  for (int64_t i = 0; i < vocab; ++i) scores[i] = (logits[i] - highest) / how.temperature;
  const float floor = how.min_p > 0.0f
                          ? static_cast<float>(std::log(static_cast<double>(how.min_p)))
                          : kMinusInfinity;
  if (how.top_k < vocab || how.top_p < 1.0f)
    return draw_limited(scores, vocab, how, floor, scratch);
  if (how.min_p > 0.0f) {
#pragma omp simd
    for (int64_t i = 0; i < vocab; ++i) scores[i] = scores[i] >= floor ? scores[i] : kMinusInfinity;
  }
  return draw_from_all(scores, vocab, how, best);
}

struct PenaltyRow {
  float repetition, frequency, presence;
  int64_t length, prompt_length;
};

// tokens: the row's, as many as `length`. counts: [vocab], zero before and after.
void penalize_row(float* logits, const int64_t* tokens, const PenaltyRow& how,
                  std::vector<int32_t>& counts) {
  constexpr int32_t kInPrompt = 1 << 30;  // beside the number of times it was generated
  const int64_t first = how.repetition == 1.0f ? how.prompt_length : 0;
  for (int64_t at = first; at < how.length; ++at) {
    int32_t& count = counts[tokens[at]];
    if (at < how.prompt_length) {
      count |= kInPrompt;
    } else {
      ++count;
    }
  }
  for (int64_t at = first; at < how.length; ++at) {
    const int32_t found = counts[tokens[at]];
    if (found == 0) continue;
    counts[tokens[at]] = 0;
    const int32_t count = found & ~kInPrompt;
    float logit = logits[tokens[at]];
    logit = logit > 0.0f ? logit / how.repetition : logit * how.repetition;
    // Exact in double, then rounded: never fused with the subtraction, as the reference has it.
    logit -= static_cast<float>(static_cast<double>(how.frequency) * count);
    if (count > 0) logit -= how.presence;
    logits[tokens[at]] = logit;
  }
}

}  // namespace
