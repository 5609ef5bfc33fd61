// A library with one function for test_emulated_layer_products.py: a layer's products of sizes for
// which few CTAs are enough. All of them run at a time.

#include "gemm/layer_products_launch.cuh"

namespace {

using namespace sluice;
using namespace sluice::products;

// run(Sizes{}) for the layer's sizes.
template <typename Run>
int64_t with_sizes(int hidden, int intermediate, Run&& run) {
  // One stage of attention's output, and gates of an even number of eights.
  if (hidden == 512 && intermediate == 1536) return run(Shape<512, 1536, 768>{});
  // More stages than one, and an odd number.
  if (hidden == 1024 && intermediate == 3584) return run(Shape<1024, 3584, 1536>{});
  return -1;
}

}  // namespace

extern "C" int64_t squares_size(int hidden, int intermediate) {
  return with_sizes(hidden, intermediate, [](auto sizes) { return kSquaresSize<decltype(sizes)>; });
}

extern "C" int64_t parts_size(int hidden, int intermediate) {
  return with_sizes(hidden, intermediate, [](auto sizes) { return kPartsSize<decltype(sizes)>; });
}

extern "C" int64_t products(const LayerProducts& layer, bool bf16) {
  emulation::all_at_once = true;
  return with_sizes(layer.hidden, layer.intermediate, [&](auto sizes) -> int64_t {
    using Sizes = decltype(sizes);
    return bf16 ? launch<__nv_bfloat16, Sizes>(layer, nullptr)
                : launch<__half, Sizes>(layer, nullptr);
  });
}
