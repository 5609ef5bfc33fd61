// A cluster on a CPU: each thread of its CTAs is a fiber, which runs until it has to wait for others,
// so what the kernel leaves unordered shows.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace emulation {

constexpr int kThreads = 384, kMostCtas = 4, kStack = 32 * 1024;

struct Place {
  int x, y, z;
};

// What a warp or a cluster waits at.
struct Barrier {
  int waiting = 0;
  unsigned generation = 0;
};

struct Warp {
  Barrier barrier;
  uint32_t slots[32][5];  // what each lane shows the others
};

struct Cta {
  Place place;
  uint8_t* shared_memory;
  Warp warps[kThreads / 32];
};

inline int num_ctas;  // of the cluster
inline Place grid;
inline Barrier all;
inline int current;  // thread, counted through all CTAs
inline Cta ctas[kMostCtas];
inline uint8_t* shared_memory;  // of the current thread's CTA
inline bool ended[kMostCtas * kThreads], started[kMostCtas * kThreads];
inline ucontext_t fibers[kMostCtas * kThreads], outside;
inline jmp_buf places[kMostCtas * kThreads];  // unlike contexts, left without a system call
inline void (*body)();

inline int rank() { return current / kThreads; }
inline int thread() { return current % kThreads; }
inline int lane() { return current % 32; }
inline Cta& cta() { return ctas[rank()]; }
inline Warp& warp() { return cta().warps[thread() / 32]; }

// Makes the next thread that has not ended the current one; -1 if there is none.
inline int take_next_thread() {
  const int num_threads = num_ctas * kThreads;
  for (int i = 1; i <= num_threads; ++i) {
    const int next = (current + i) % num_threads;
    if (ended[next]) continue;
    current = next;
    shared_memory = cta().shared_memory;
    return next;
  }
  return -1;
}

[[noreturn]] inline void go_on(int thread) {
  if (started[thread]) _longjmp(places[thread], 1);
  started[thread] = true;
  setcontext(&fibers[thread]);
  std::abort();
}

inline void yield() {
  const int from = current;
  if (_setjmp(places[from]) == 0) go_on(take_next_thread());
}

inline void wait(Barrier& barrier, int count) {
  const unsigned generation = barrier.generation;
  if (++barrier.waiting == count) {
    barrier.waiting = 0;
    ++barrier.generation;
  }
  while (barrier.generation == generation) yield();
}

inline void warp_sync() { wait(warp().barrier, 32); }

inline void run_thread() {
  body();
  ended[current] = true;
  const int next = take_next_thread();
  if (next < 0) setcontext(&outside);
  go_on(next);
}

// Runs the CTAs, whose places and memory are set.
inline void run_cluster(void (*kernel)()) {
  static std::vector<char> stacks(kMostCtas * kThreads * kStack);
  body = kernel;
  for (int i = 0; i < num_ctas * kThreads; ++i) {
    ended[i] = started[i] = false;
    getcontext(&fibers[i]);
    fibers[i].uc_stack.ss_sp = &stacks[i * kStack];
    fibers[i].uc_stack.ss_size = kStack;
    makecontext(&fibers[i], run_thread, 0);
  }
  current = 0;
  shared_memory = ctas[0].shared_memory;
  started[0] = true;
  swapcontext(&outside, &fibers[0]);
}

// Shows the other lanes `words` and lets `read` look at theirs.
template <int N, typename Read>
void exchange(const uint32_t (&words)[N], Read&& read) {
  std::copy(words, words + N, warp().slots[lane()]);
  warp_sync();
  read(warp().slots);
  warp_sync();
}

}  // namespace emulation

#define threadIdx (emulation::Place{emulation::thread(), 0, 0})
#define blockIdx emulation::cta().place
#define __syncwarp emulation::warp_sync
#define __cvta_generic_to_shared(at) \
  static_cast<size_t>(reinterpret_cast<const uint8_t*>(at) - emulation::shared_memory)

// No macro: a member of launch configurations has this name, too.
inline emulation::Place& gridDim = emulation::grid;

using std::max;
using std::min;

inline float __expf(float x) { return std::exp(x); }
