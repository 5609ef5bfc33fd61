// A whole decoder in one launch, for few tokens: a CTA on every SM stays for all layers, its share
// of their weights comes without a break, and a phase costs what its CTAs wait for each other
// beyond the weights that come meanwhile.

#include "decoder/persistent_decoder.cuh"

#include <algorithm>

#include "common/device.cuh"
#include "decoder/persistent_layers.cuh"

namespace sluice {
namespace {

using namespace persistent;

template <typename T, int D, int kGroups, bool kDrafts>
__global__ void __launch_bounds__(kThreads, 1)
    persistent_decoder_kernel(const __grid_constant__ PersistentDecoder p) {
#ifdef SLUICE_HOPPER
  extern __shared__ __align__(128) uint8_t raw[];
  auto& sm = *reinterpret_cast<Shared*>(raw);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(address(&sm.full[stage]), 1);
      mbarrier_init(address(&sm.empty[stage]), kWarps);
    }
    mbarrier_init(address(&sm.ended), kWarps);
    sm.layers = 0;
    mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < kConsumers) {
    take_registers<kConsumerRegisters>();
    Layers<T, D, kGroups, kDrafts>(p, sm).run();
  } else {
    give_up_registers<kProducerRegisters>();
    const int warp = threadIdx.x / 32 - kWarps;
    if (warp == 0) Producer(p, sm).run();
    if (warp == 1) Keeper<T, D, kGroups>(p, sm).run();
  }
#endif
}

template <typename T, int D, int kGroups, bool kDrafts = false>
cudaError_t launch(const PersistentDecoder& p, cudaStream_t stream) {
  const auto kernel = persistent_decoder_kernel<T, D, kGroups, kDrafts>;
  static const cudaError_t allowed = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
  if (allowed != cudaSuccess) return allowed;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = persistent_ctas();
  config.blockDim = kThreads;
  config.dynamicSmemBytes = sizeof(Shared);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, p);
}

template <typename T, int D>
cudaError_t launch_tokens(const PersistentDecoder& p, cudaStream_t stream) {
  // A kernel of its own: plain decoding has no instruction for it.
  if (p.queries > 1 || p.aux_states) return launch<T, D, 1, true>(p, stream);
  return p.tokens <= 8 ? launch<T, D, 1>(p, stream) : launch<T, D, 2>(p, stream);
}

template <typename T>
cudaError_t dispatch(const PersistentDecoder& p, cudaStream_t stream) {
  switch (p.head_dim) {
    case 64:
      return launch_tokens<T, 64>(p, stream);
    case 128:
      return launch_tokens<T, 128>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

int persistent_ctas() { return std::min(num_sms(), kMostPersistentCtas); }

cudaError_t persistent_decoder(const PersistentDecoder& decoder, bool bf16, cudaStream_t stream) {
  if (decoder.tokens == 0) return cudaSuccess;
  return bf16 ? dispatch<__nv_bfloat16>(decoder, stream) : dispatch<__half>(decoder, stream);
}

}  // namespace sluice
