// A library with one function for test_emulated_persistent.py: a decoder of few tokens. The CTAs of
// the grid are those of one cluster, so all are there at a time.

#include "decoder/persistent_layers.cuh"

namespace {

using namespace sluice;
using namespace sluice::persistent;

PersistentDecoder params;

template <typename T, int D, int kGroups, bool kDrafts = false>
void run_thread() {
  auto& sm = *reinterpret_cast<Shared*>(emulation::shared_memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(address(&sm.full[stage]), 1);
      mbarrier_init(address(&sm.empty[stage]), kWarps);
    }
    mbarrier_init(address(&sm.ended), kWarps);
    sm.layers = 0;
  }
  __syncthreads();
  if (threadIdx.x < kConsumers) {
    Layers<T, D, kGroups, kDrafts>(params, sm).run();
  } else if (threadIdx.x < kConsumers + 32) {
    Producer(params, sm).run();
  } else if (threadIdx.x < kConsumers + 64) {
    Keeper<T, D, kGroups>(params, sm).run();
  }
}

template <typename T, int D>
void run_tokens(int ctas) {
  if (params.queries > 1 || params.aux_states) {
    return emulation::run_cluster(ctas, run_thread<T, D, 1, true>);
  }
  emulation::run_cluster(ctas, params.tokens <= 8 ? run_thread<T, D, 1> : run_thread<T, D, 2>);
}

}  // namespace

extern "C" int64_t exchange_bytes(int hidden, int intermediate, int q_heads, int kv_heads, int dim,
                                  int ctas) {
  return persistent_exchange_bytes(hidden, intermediate, q_heads, kv_heads, dim, ctas);
}

extern "C" void persistent(const PersistentDecoder& decoder, bool bf16, int ctas) {
  params = decoder;
  emulation::threads_each = kThreads;
  emulation::grid = {ctas, 1, 1};
  constexpr size_t kBytes = (sizeof(Shared) + 127) / 128 * 128;
  std::vector<uint8_t> memory(kBytes * ctas + 128, 0xff);  // NaN
  const auto begin = (reinterpret_cast<uintptr_t>(memory.data()) + 127) / 128 * 128;
  for (int i = 0; i < ctas; ++i) {
    emulation::ctas[i] = {{i, 0, 0}, reinterpret_cast<uint8_t*>(begin + i * kBytes), {}, {}};
  }
  if (bf16 && params.head_dim == 64) return run_tokens<__nv_bfloat16, 64>(ctas);
  if (!bf16 && params.head_dim == 128) return run_tokens<__half, 128>(ctas);
  std::abort();  // not compiled
}
