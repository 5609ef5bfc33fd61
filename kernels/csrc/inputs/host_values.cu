// Small arrays of the host travel as arguments of a kernel: a copy engine and the kernels take
// turns only after 5 to 8 us each time, for which a GPU between two decode steps has nothing to do.

#include "inputs/host_values.cuh"

#include <algorithm>
#include <cstring>

#include "common/dependent_launch.cuh"

namespace sluice {
namespace {

constexpr int kThreads = 256;
constexpr int kMostWords = 1016;  // a kernel's arguments may take 4 KB

template <int kMax>
struct Words {
  uint32_t words[kMax];
};

template <int kMax>
__global__ void __launch_bounds__(kThreads)
    store_words_kernel(uint32_t* target, const __grid_constant__ Words<kMax> given, int num) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  wait_for_inputs();
  allow_next();
  if (i < num) target[i] = given.words[i];
}

template <typename T, int kMax>
__global__ void __launch_bounds__(kThreads)
    put_values_kernel(T* table, const __grid_constant__ Words<kMax> given, int num) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  wait_for_inputs();
  allow_next();
  if (i < num) table[given.words[i]] = static_cast<int>(given.words[kMax / 2 + i]);
}

template <int kMax>
cudaError_t store(uint32_t* target, const uint32_t* words, int num, cudaStream_t stream) {
  Words<kMax> given;
  std::memcpy(given.words, words, num * sizeof(uint32_t));
  const dim3 grid((num + kThreads - 1) / kThreads);
  return launch_dependent(store_words_kernel<kMax>, grid, kThreads, 0, stream, target, given, num);
}

template <typename T, int kMax>
cudaError_t put(const Placed& placed, int first, int num, cudaStream_t stream) {
  Words<kMax> given;
  std::copy_n(placed.places + first, num, given.words);
  std::copy_n(placed.values + first, num, given.words + kMax / 2);
  const dim3 grid((num + kThreads - 1) / kThreads);
  auto* table = static_cast<T*>(placed.table);
  return launch_dependent(put_values_kernel<T, kMax>, grid, kThreads, 0, stream, table, given, num);
}

template <typename T>
cudaError_t put_all(const Placed& placed, cudaStream_t stream) {
  constexpr int kFew = 32, kMost = kMostWords / 2;
  if (placed.num <= kFew) return put<T, 2 * kFew>(placed, 0, placed.num, stream);
  cudaError_t error = cudaSuccess;
  for (int first = 0; first < placed.num && error == cudaSuccess; first += kMost) {
    error = put<T, kMostWords>(placed, first, std::min(kMost, placed.num - first), stream);
  }
  return error;
}

}  // namespace

cudaError_t store_words(uint32_t* target, const uint32_t* words, int num, cudaStream_t stream) {
  constexpr int kFew = 64;  // copied faster than the most
  if (num == 0) return cudaSuccess;
  if (num <= kFew) return store<kFew>(target, words, num, stream);
  cudaError_t error = cudaSuccess;
  for (int first = 0; first < num && error == cudaSuccess; first += kMostWords) {
    const int some = std::min(kMostWords, num - first);
    error = store<kMostWords>(target + first, words + first, some, stream);
  }
  return error;
}

cudaError_t put_values(const Placed& placed, cudaStream_t stream) {
  if (placed.num == 0) return cudaSuccess;
  return placed.wide ? put_all<int64_t>(placed, stream) : put_all<int>(placed, stream);
}

}  // namespace sluice
