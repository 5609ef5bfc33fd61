// In place of the kernels' own: nothing runs beside anything but the CTAs of a cluster.
#pragma once

#include <functional>

#include "warp.h"

namespace sluice {
inline void wait_for_inputs() {}
inline void allow_next() {}

template <typename... Parameters, typename... Arguments>
cudaError_t launch_dependent_clusters(void (*kernel)(Parameters...), dim3 grid, dim3 block,
                                      size_t smem, cudaStream_t, unsigned cluster,
                                      Arguments... arguments) {
  const unsigned at_a_time = emulation::all_at_once ? grid.x : cluster;
  emulation::cluster_ctas = cluster;
  if (block.x > emulation::kThreads || at_a_time > emulation::kMaxCtas) {
    return cudaErrorInvalidConfiguration;
  }
  emulation::threads_each = block.x;
  static std::function<void()> run;
  run = [=] { kernel(arguments...); };
  emulation::grid = {static_cast<int>(grid.x), static_cast<int>(grid.y), 1};
  constexpr size_t kAlignment = 1024;
  const size_t bytes = (smem + kAlignment - 1) / kAlignment * kAlignment;
  std::vector<uint8_t> memory(bytes * at_a_time + kAlignment);
  const auto begin = reinterpret_cast<uintptr_t>(memory.data() + kAlignment) & -kAlignment;
  for (unsigned y = 0; y < grid.y; ++y) {
    for (unsigned x = 0; x < grid.x; x += at_a_time) {
      std::fill(memory.begin(), memory.end(), 0xff);  // NaN
      for (unsigned rank = 0; rank < at_a_time; ++rank) {
        const emulation::Place place = {static_cast<int>(x + rank), static_cast<int>(y), 0};
        emulation::ctas[rank] = {place, reinterpret_cast<uint8_t*>(begin + bytes * rank), {}};
      }
      emulation::run_cluster(at_a_time, [] { run(); });
    }
  }
  return cudaSuccess;
}

template <typename... Parameters, typename... Arguments>
cudaError_t launch_dependent(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t smem,
                             cudaStream_t stream, Arguments... arguments) {
  return launch_dependent_clusters(kernel, grid, block, smem, stream, 1, arguments...);
}
}  // namespace sluice
