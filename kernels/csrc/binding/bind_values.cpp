// Registers with torch what brings small arrays of the host to the device.

#include "binding/bind.h"
#include "inputs/host_values.cuh"

namespace {

using at::Tensor;
using sluice::check;

void check_on_host(const Tensor& t, const char* name) {
  TORCH_CHECK(t.device().is_cpu() && t.is_contiguous(), name, " must be contiguous host memory");
}

void store_values(Tensor target, const Tensor& values) {
  check_on_host(values, "values");
  TORCH_CHECK(target.is_cuda() && target.is_contiguous(), "target must be contiguous, on a GPU");
  TORCH_CHECK(target.scalar_type() == values.scalar_type() && target.sizes() == values.sizes(),
              "target and values must match, got ", target.scalar_type(), " ", target.sizes(),
              " and ", values.scalar_type(), " ", values.sizes());
  TORCH_CHECK(target.element_size() % sizeof(uint32_t) == 0, "values must be words, got ",
              values.scalar_type());
  const c10::cuda::CUDAGuard guard(target.device());
  check(sluice::store_words(static_cast<uint32_t*>(target.data_ptr()),
                            static_cast<const uint32_t*>(values.data_ptr()),
                            values.nbytes() / sizeof(uint32_t), c10::cuda::getCurrentCUDAStream()),
        "store_values");
}

void put_values(Tensor table, const Tensor& found) {
  check_on_host(found, "found");
  TORCH_CHECK(table.is_cuda() && table.is_contiguous() &&
                  (table.scalar_type() == at::kInt || table.scalar_type() == at::kLong),
              "table must be contiguous int32 or int64, on a GPU");
  TORCH_CHECK(found.scalar_type() == at::kLong && found.dim() == 2 && found.size(0) == 2,
              "found must be int64 [2, n]: places and values");
  const int64_t num = found.size(1), end = std::min<int64_t>(table.numel(), INT32_MAX);
  const int64_t* places = found.data_ptr<int64_t>();
  const int64_t* values = places + num;
  for (int64_t i = 0; i < num; ++i) {
    TORCH_CHECK(places[i] >= 0 && places[i] < end, "place ", places[i], " is not in a table of ",
                table.numel());
    TORCH_CHECK(values[i] == static_cast<int32_t>(values[i]), "value ", values[i],
                " has more than 32 bits");
  }
  const bool wide = table.scalar_type() == at::kLong;
  const c10::cuda::CUDAGuard guard(table.device());
  check(sluice::put_values({table.data_ptr(), places, values, wide, static_cast<int>(num)},
                           c10::cuda::getCurrentCUDAStream()),
        "put_values");
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(sluice_cuda, m) {
  m.def("store_values(Tensor(a!) target, Tensor values) -> ()");
  m.def("put_values(Tensor(a!) table, Tensor found) -> ()");
}

TORCH_LIBRARY_IMPL(sluice_cuda, CUDA, m) {
  m.impl("store_values", &store_values);
  m.impl("put_values", &put_values);
}
