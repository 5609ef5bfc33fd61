// Kernels on a CPU: each thread of a cluster's CTAs is a fiber, which runs until it has to wait for
// others, so what a kernel leaves unordered shows. Products are summed in float32.
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
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

namespace emulation {

#ifndef EMULATED_THREADS  // of a CTA, at most
#define EMULATED_THREADS 128
#endif
#ifndef EMULATED_CTAS  // of a cluster, at most
#define EMULATED_CTAS 1
#endif
constexpr int kThreads = EMULATED_THREADS, kMaxCtas = EMULATED_CTAS, kStack = 128 * 1024;

struct Place {
  int x, y, z;
};

// What a warp, a CTA or a cluster waits at.
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
  uint8_t* memory;
  Barrier barrier;
  Barrier named[16];
};

inline Cta ctas[kMaxCtas];
inline Place grid;
inline int threads_each = kThreads;  // of a CTA
inline int threads;                  // of the cluster
inline int cluster_ctas = kMaxCtas;  // fewer where what runs as one cluster is several
inline bool all_at_once;             // launches run their grids as one cluster
inline int current;                  // thread, counted through its CTAs
inline uint8_t* shared_memory;       // of the thread's CTA
inline Barrier cluster;
inline Warp warps[kMaxCtas * kThreads / 32];
inline bool started[kMaxCtas * kThreads], ended[kMaxCtas * kThreads];
inline ucontext_t fibers[kMaxCtas * kThreads], outside;
inline jmp_buf places[kMaxCtas * kThreads];  // unlike contexts, left without a system call
inline void (*body)();

// What a thread waits for. It is not run before: to look costs less than to change threads.
struct Wait {
  bool (*is_over)(const void*);
  alignas(8) uint8_t what[16];  // not on the thread's own stack, which is far away
};
inline Wait waits[kMaxCtas * kThreads];

inline int rank() { return current / threads_each; }
inline int first_of_cluster() { return rank() / cluster_ctas * cluster_ctas; }
inline int lane() { return current % 32; }
inline Cta& cta() { return ctas[rank()]; }
inline Warp& warp() { return warps[current / 32]; }

// The next thread that can go on; -1 if all have ended. Aborts where each waits for another one.
inline int next_thread() {
  bool is_left = false;
  for (int i = 1, next = current + 1; i <= threads; ++i, ++next) {
    if (next == threads) next = 0;
    if (ended[next]) continue;
    is_left = true;
    const Wait& wait = waits[next];
    if (!wait.is_over || wait.is_over(wait.what)) return next;
  }
  if (is_left) std::abort();
  return -1;
}

[[noreturn]] inline void go_on(int thread) {
  current = thread;
  shared_memory = cta().memory;
  if (started[thread]) _longjmp(places[thread], 1);
  started[thread] = true;
  setcontext(&fibers[thread]);
  std::abort();
}

// Lets the other threads run.
inline void yield() {
  if (_setjmp(places[current]) == 0) go_on(next_thread());
}

// `is_over` is asked by other threads, too: it must not look at what is this thread's own.
template <typename IsOver>
void wait_until(const IsOver& is_over) {
  static_assert(sizeof(is_over) <= sizeof(Wait::what));
  if (is_over()) return;
  Wait& wait = waits[current];
  new (wait.what) IsOver(is_over);
  wait.is_over = [](const void* what) { return (*static_cast<const IsOver*>(what))(); };
  yield();
  wait.is_over = nullptr;
}

inline void arrive(Barrier& barrier, int count) {
  if (++barrier.waiting < count) return;
  barrier.waiting = 0;
  ++barrier.generation;
}

inline void wait(Barrier& barrier, int count) {
  const unsigned generation = barrier.generation;
  arrive(barrier, count);
  wait_until([&barrier, generation] { return barrier.generation != generation; });
}

inline void warp_sync() { wait(warp().barrier, 32); }
inline void block_sync() { wait(cta().barrier, threads_each); }

inline void run_thread() {
  body();
  ended[current] = true;
  const int next = next_thread();
  if (next < 0) setcontext(&outside);
  go_on(next);
}

// The places and shared memories of its CTAs are in `ctas`.
inline void run_cluster(int num_ctas, void (*kernel)()) {
  static const std::unique_ptr<char[]> stacks(new char[kMaxCtas * kThreads * kStack]);
  threads = num_ctas * threads_each;
  body = kernel;
  for (int i = 0; i < threads; ++i) {
    started[i] = ended[i] = false;
    waits[i] = {};
    getcontext(&fibers[i]);
    fibers[i].uc_stack.ss_sp = &stacks[i * kStack];
    fibers[i].uc_stack.ss_size = kStack;
    makecontext(&fibers[i], run_thread, 0);
  }
  current = 0;
  shared_memory = ctas[0].memory;
  started[0] = true;
  swapcontext(&outside, &fibers[0]);
}

inline void run_cta(Place place, void (*kernel)()) {
  ctas[0] = {place, shared_memory, {}};
  run_cluster(1, kernel);
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
  uint32_t words[sizeof(T) / 4], out[sizeof(T) / 4];
  std::memcpy(words, &x, sizeof(x));
  exchange(words, [&](auto& slots) { std::memcpy(out, slots[from], sizeof(out)); });
  std::memcpy(&x, out, sizeof(x));
  return x;
}

inline bool any(bool x) {
  bool out = false;
  exchange({x}, [&](auto& slots) {
    for (auto& slot : slots) out |= slot[0] != 0;
  });
  return out;
}

inline unsigned ballot(bool x) {
  unsigned out = 0;
  exchange({x}, [&](auto& slots) {
    for (int i = 0; i < 32; ++i) out |= slots[i][0] << i;
  });
  return out;
}

}  // namespace emulation

#define threadIdx (emulation::Place{emulation::current % emulation::threads_each, 0, 0})
#define blockIdx emulation::cta().place
#define __syncwarp emulation::warp_sync
#define __syncthreads emulation::block_sync
#define __shfl_xor_sync(mask, x, d) emulation::shuffle(x, emulation::lane() ^ (d))
#define __shfl_sync(mask, x, from) emulation::shuffle(x, from)
#define __shfl_up_sync(mask, x, d) \
  emulation::shuffle(x, emulation::lane() < (d) ? emulation::lane() : emulation::lane() - (d))
#define __any_sync(mask, x) emulation::any(x)
#define __ballot_sync(mask, x) emulation::ballot(x)
#define __cvta_generic_to_shared(at) \
  static_cast<size_t>(reinterpret_cast<const uint8_t*>(at) - emulation::shared_memory)

// No macro: a member of launch configurations has this name, too.
inline emulation::Place& gridDim = emulation::grid;
inline const struct {
  const int& x;
} blockDim{emulation::threads_each};

using std::isfinite;
using std::max;
using std::min;

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
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
T atomicAdd(T* at, std::type_identity_t<T> x) {
  const T before = *at;
  *at += x;
  return before;
}

template <typename T>
T __ldcg(const T* at) {
  return *at;
}
