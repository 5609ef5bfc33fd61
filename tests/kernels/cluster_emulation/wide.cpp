// A library with one function for test_emulated_wide.py: the wide product, cluster after cluster.

#include "cluster.h"  // first: what the kernel finds on a GPU

#include <functional>

// In place of launches and of questions to the device.
#define __launch_bounds__(...)
#define __grid_constant__
#define cudaFuncSetAttribute(...) cudaSuccess
#define cudaOccupancyMaxActiveClusters(count, ...) (*(count) = kClusters, cudaSuccess)

namespace sluice {

constexpr int kClusters = 3;  // that run at a time

inline void wait_for_inputs() {}
inline void allow_next() {}

template <typename... Parameters, typename... Arguments>
cudaError_t launch_dependent_clusters(void (*kernel)(Parameters...), int ctas, int threads, int smem,
                                      cudaStream_t, int size, Arguments... arguments) {
  if (threads != emulation::kThreads) return cudaErrorInvalidConfiguration;
  static std::function<void()> run;
  run = [=] { kernel(arguments...); };
  constexpr int kAlignment = 1024;
  std::vector<uint8_t> memory((smem + kAlignment) * (size + 1));
  emulation::num_ctas = size;
  emulation::grid = {ctas, 1, 1};
  for (int first = 0; first < ctas; first += size) {
    std::fill(memory.begin(), memory.end(), 0xff);  // NaN
    for (int i = 0; i < size; ++i) {
      auto at = reinterpret_cast<uintptr_t>(memory.data()) + i * (smem + kAlignment);
      at = (at + kAlignment - 1) / kAlignment * kAlignment;
      emulation::ctas[i].shared_memory = reinterpret_cast<uint8_t*>(at);
      emulation::ctas[i].place = {first + i, 0, 0};
    }
    emulation::run_cluster([] { run(); });
  }
  return cudaSuccess;
}

}  // namespace sluice

#include "wide_linear.cu"

extern "C" int wide(const sluice::WideLinear& p) { return sluice::wide_linear(p, true, nullptr); }
