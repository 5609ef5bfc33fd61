// A kernel that waits for what never comes would hold its GPU for ever. Compiled with
// -DSLUICE_SPIN_LIMIT, a wait of more than a second is an error.
#pragma once

#include <cstdint>

namespace sluice {

#ifdef SLUICE_SPIN_LIMIT

class SpinLimit {
 public:
  __device__ __forceinline__ SpinLimit() : begin_(now()) {}
  __device__ __forceinline__ void check() const {
    if (now() - begin_ > 1'000'000'000) __trap();
  }

 private:
  static __device__ __forceinline__ uint64_t now() {
    uint64_t nanoseconds;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
    return nanoseconds;
  }
  uint64_t begin_;
};

#else

struct SpinLimit {
  __device__ __forceinline__ void check() const {}
};

#endif

}  // namespace sluice
