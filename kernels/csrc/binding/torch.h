// Ops on torch's tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#ifndef SLUICE_EMULATED
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

#include "binding/binder.h"

namespace sluice {

inline Element element_of_tensor(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kFloat: return Element::kFloat32;
    case at::kHalf: return Element::kFloat16;
    case at::kBFloat16: return Element::kBfloat16;
    case at::kFloat8_e4m3fn: return Element::kE4m3;
    case at::kInt: return Element::kInt32;
    case at::kLong: return Element::kInt64;
    case at::kByte: return Element::kUint8;
    default: return Element::kOther;
  }
}

inline at::ScalarType scalar_type_of(Element element) {
  constexpr at::ScalarType kTypes[] = {at::kFloat, at::kHalf, at::kBFloat16, at::kFloat8_e4m3fn,
                                       at::kInt,   at::kLong, at::kByte,     at::kByte};
  return kTypes[static_cast<int>(element)];
}

inline TensorView view_of(const at::Tensor& t) {
  return {t.data_ptr(), t.sizes().data(), t.strides().data(), static_cast<int>(t.dim()),
          element_of_tensor(t), static_cast<int>(t.element_size()), t.is_cuda()};
}

// Runs an op on the device's current stream. What it allocates is appended to `made`.
inline void launch(const Binder& binder, Binder::Values& values, const c10::Device& device,
                   at::Tensor* made, int& num_made) {
#ifdef SLUICE_EMULATED
  cudaStream_t stream = nullptr;
#else
  const c10::cuda::CUDAGuard guard(device);
  cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
#endif
  binder.run(values, stream, [&](int, Element element, const int64_t* sizes, int dim) {
    const auto options = at::TensorOptions().dtype(scalar_type_of(element)).device(device);
    made[num_made] = at::empty(at::IntArrayRef(sizes, dim), options);
    return view_of(made[num_made++]);
  });
}

// An argument of an op that is called from here.
struct Argument {
  const char* name;
  const at::Tensor* tensor = nullptr;
  double number = 0;

  Argument(const char* name, const at::Tensor& tensor) : name(name), tensor(&tensor) {}
  Argument(const char* name, const std::optional<at::Tensor>& tensor)
      : name(name), tensor(tensor ? &*tensor : nullptr), is_none(!tensor) {}
  Argument(const char* name, double number) : name(name), number(number) {}
  bool is_none = false;
};

inline const Binder& binder_of(const char* name) {
  for (const Op* op : Op::all()) {
    if (std::strcmp(op->name, name) == 0) return *new Binder(*op);  // once for each caller
  }
  throw std::logic_error(name);
}

// Runs an op as Python would; all OUT tensors are passed. The first argument is a tensor.
inline void run(const Binder& binder, std::initializer_list<Argument> arguments) {
  Binder::Values values;
  const auto& fields = binder.op().fields;
  size_t at = 0;
  for (const Argument& argument : arguments) {
    if (argument.is_none) continue;
    for (size_t tried = 0; std::strcmp(fields[at].name, argument.name) != 0; ++tried) {
      if (tried == fields.size()) throw std::logic_error(argument.name);
      at = (at + 1) % fields.size();
    }
    values.given[at] = true;
    if (argument.tensor == nullptr) {
      values.numbers[at] = argument.number;
    } else {
      values.views[at] = view_of(*argument.tensor);
      values.tensors[at] = &values.views[at];
    }
  }
  int num_made = 0;
  launch(binder, values, arguments.begin()->tensor->device(), nullptr, num_made);
}

}  // namespace sluice
