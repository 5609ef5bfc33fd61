// How a request samples, for the GPU's kernel and the CPU's.
#pragma once

#include <cstdint>

namespace sluice {

// kernels/sampling_row.py has the same layout as a numpy dtype.
struct alignas(32) SamplingRow {
  float temperature;  // 0 = the best token
  float top_p;        // 1 = all
  float min_p;        // 0 = all
  int top_k;          // vocab or more = all
  uint64_t seed;
  uint64_t unused;
};

}  // namespace sluice
