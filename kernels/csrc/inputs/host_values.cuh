// Interface of host_values.cu: raw pointers only.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

#include "common/arguments.h"

namespace sluice {

struct StoreValues {
  ARGUMENTS(StoreValues);
  IN(void*, target, "any[*]");
  IN(const void*, values, "any[*] host");  // of the same type and sizes, in words of 32 bits
};

// Writes words of the host's memory to the device's. They are read before it returns.
cudaError_t store_words(uint32_t* target, const uint32_t* words, int num, cudaStream_t stream);

struct PutValues {
  ARGUMENTS(PutValues);
  IN(void*, table, "i32|i64[*]");
  IN(const int64_t*, found, "[2, num] host");  // places, below 2^31, no two alike; values
  DIM(int, num);
};

struct Placed {
  void* table;            // of int32, or of int64 if wide
  const int64_t* places;  // [num], in the host's memory: below 2^31, no two alike
  const int64_t* values;  // [num], in the host's memory: of 32 bits, signed
  bool wide;
  int num;
};

// table[places[i]] = values[i]. Both are read before it returns.
cudaError_t put_values(const Placed& placed, cudaStream_t stream);

}  // namespace sluice
