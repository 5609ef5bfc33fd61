// A kernel on a CPU: each thread is a fiber, which runs until it has to wait for others, so what the
// kernel leaves unordered shows. Copies are done at once; products are summed in float32.
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

#ifndef EMULATED_THREADS  // of a CTA
#define EMULATED_THREADS 128
#endif
#ifndef EMULATED_CTAS  // that run together
#define EMULATED_CTAS 1
#endif
constexpr int kThreads = EMULATED_THREADS, kCtas = EMULATED_CTAS;
constexpr int kStack = kThreads * kCtas > 512 ? 32 * 1024 : 128 * 1024;

struct Place {
  int x, y, z;
};

// What a warp or a CTA waits at.
struct Barrier {
  int waiting = 0;
  unsigned generation = 0;
};

struct Warp {
  Barrier barrier;
  uint32_t slots[32][6];  // what each lane shows the others
};

struct Cta {
  Place place;
  uint8_t* shared_memory;
  Warp warps[kThreads / 32];
  Barrier barriers[16];  // by their names; 0: of all threads
};

inline int num_ctas = kCtas;  // that run now
inline Place grid = {kCtas, 1, 1};
inline Barrier all;  // of all threads of all CTAs
inline int current;  // thread, counted through all CTAs
inline Cta ctas[kCtas];
inline uint8_t* shared_memory;  // of the current thread's CTA
inline bool ended[kCtas * kThreads];
inline bool started[kCtas * kThreads];
inline ucontext_t fibers[kCtas * kThreads], outside;
inline jmp_buf places[kCtas * kThreads];  // where they wait; unlike contexts, left without a system call
inline void (*body)();

inline int thread() { return current % kThreads; }
inline int lane() { return current % 32; }
inline Cta& cta() { return ctas[current / kThreads]; }
inline Warp& warp() { return cta().warps[thread() / 32]; }

// Makes the next thread that has not ended the current one; -1 if there is none.
inline int take_next_thread() {
  for (int i = 1; i <= num_ctas * kThreads; ++i) {
    const int next = (current + i) % (num_ctas * kThreads);
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
inline void block_sync() { wait(cta().barriers[0], kThreads); }

inline void run_thread() {
  body();
  ended[current] = true;
  const int next = take_next_thread();
  if (next < 0) setcontext(&outside);
  go_on(next);
}

// Runs the CTAs, whose places and memory are set.
inline void run_ctas(void (*kernel)()) {
  static std::vector<char> stacks(static_cast<size_t>(kCtas) * kThreads * kStack);
  body = kernel;
  for (int i = 0; i < num_ctas * kThreads; ++i) {
    ended[i] = started[i] = false;
    getcontext(&fibers[i]);
    fibers[i].uc_stack.ss_sp = &stacks[static_cast<size_t>(i) * kStack];
    fibers[i].uc_stack.ss_size = kStack;
    makecontext(&fibers[i], run_thread, 0);
  }
  current = 0;
  shared_memory = ctas[0].shared_memory;
  started[0] = true;
  swapcontext(&outside, &fibers[0]);
}

template <typename To, typename From>
To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// Shows the other lanes `words` and lets `read` look at theirs.
template <int N, typename Read>
void exchange(const uint32_t (&words)[N], Read&& read) {
  std::copy(words, words + N, warp().slots[lane()]);
  warp_sync();
  read(warp().slots);
  warp_sync();
}

template <typename T>
T shuffle(T x, int from) {
  uint32_t out = 0;
  exchange({bits<uint32_t>(x)}, [&](auto& slots) { out = slots[from][0]; });
  return bits<T>(out);
}

inline bool any(bool x) {
  bool out = false;
  exchange({x}, [&](auto& slots) {
    for (auto& slot : slots) out |= slot[0] != 0;
  });
  return out;
}

}  // namespace emulation

#define threadIdx (emulation::Place{emulation::thread(), 0, 0})
#define blockIdx emulation::cta().place
#define __syncwarp emulation::warp_sync
#define __syncthreads emulation::block_sync
#define __shfl_xor_sync(mask, x, d) emulation::shuffle(x, emulation::lane() ^ (d))
#define __shfl_sync(mask, x, from) emulation::shuffle(x, from)
#define __any_sync(mask, x) emulation::any(x)
#define __cvta_generic_to_shared(at) \
  static_cast<size_t>(reinterpret_cast<const uint8_t*>(at) - emulation::shared_memory)

// No macros: members of launch configurations have these names, too.
inline emulation::Place& gridDim = emulation::grid;
inline const emulation::Place blockDim = {emulation::kThreads, 1, 1};

using std::max;
using std::min;

inline uint32_t __umulhi(uint32_t a, uint32_t b) { return static_cast<uint64_t>(a) * b >> 32; }

inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t order) {
  const uint64_t all = static_cast<uint64_t>(b) << 32 | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    out |= static_cast<uint32_t>(all >> (order >> 4 * i & 7) * 8 & 255) << 8 * i;
  }
  return out;
}

template <typename T>
T __ldcg(const T* at) {
  return *at;
}

inline float rsqrtf(float x) { return 1.f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
