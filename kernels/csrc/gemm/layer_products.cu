// The products, norms and gating of a decoder layer behind its attention, and the next layer's
// projections, in one launch for 17 to 64 tokens: a CTA on almost every SM stays for all of them,
// and its weights keep coming while CTAs hand each other their results.
//
// Norms are deferred: a row is handed on times the norm's weight, with the sum of its squares, and
// the products of it are scaled.

#include "gemm/layer_products_launch.cuh"

namespace sluice {
namespace {

using namespace products;

// Sizes of those layers that have a kernel: a tile is as many features as let all CTAs end at once.
using Llama8b = Shape<4096, 14336, 6144>;  // Llama 3, 8B; Mistral, 7B
using Qwen8b = Shape<4096, 12288, 6144>;   // Qwen 3, 8B

template <typename Sizes>
bool is_of(int hidden, int intermediate, int features) {
  return hidden == Sizes::kHidden && intermediate == Sizes::kIntermediate &&
         features == Sizes::kQkvFeatures;
}

// visit(Sizes{}) for a layer's sizes; `otherwise` if there is no kernel for them.
template <typename Visit, typename Result>
Result with_sizes(int hidden, int intermediate, int features, Visit&& visit, Result otherwise) {
  if (is_of<Llama8b>(hidden, intermediate, features)) return visit(Llama8b{});
  if (is_of<Qwen8b>(hidden, intermediate, features)) return visit(Qwen8b{});
  return otherwise;
}

}  // namespace

int64_t layer_products_squares(int hidden, int intermediate, int features) {
  const auto size = [](auto sizes) { return kSquaresSize<decltype(sizes)>; };
  return with_sizes(hidden, intermediate, features, size, int64_t{0});
}

int64_t layer_products_parts(int hidden, int intermediate, int features) {
  const auto size = [](auto sizes) { return kPartsSize<decltype(sizes)>; };
  return with_sizes(hidden, intermediate, features, size, int64_t{0});
}

bool layer_products_fit(int hidden, int intermediate, int features, bool bf16) {
  const auto visit = [&](auto sizes) {
    using Sizes = decltype(sizes);
    return bf16 ? fits<__nv_bfloat16, Sizes>() : fits<__half, Sizes>();
  };
  return with_sizes(hidden, intermediate, features, visit, false);
}

cudaError_t layer_products(const LayerProducts& layer, bool bf16, cudaStream_t stream) {
  const auto visit = [&](auto sizes) {
    using Sizes = decltype(sizes);
    return bf16 ? launch<__nv_bfloat16, Sizes>(layer, stream)
                : launch<__half, Sizes>(layer, stream);
  };
  return with_sizes(layer.hidden, layer.intermediate, layer.features, visit, cudaErrorInvalidValue);
}

}  // namespace sluice
