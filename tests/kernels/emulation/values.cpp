// A library with two functions for test_emulated_values.py.

#include "inputs/host_values.cuh"

extern "C" int store(void* target, const void* words, int num) {
  return sluice::store_words(static_cast<uint32_t*>(target), static_cast<const uint32_t*>(words),
                             num, nullptr);
}

extern "C" int put(void* table, const void* places, const void* values, int wide, int num) {
  return sluice::put_values({table, static_cast<const int64_t*>(places),
                             static_cast<const int64_t*>(values), wide != 0, num},
                            nullptr);
}
