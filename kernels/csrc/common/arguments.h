// How an op states its arguments: once, in the struct that its launch takes. The binding
// (module.cpp) reads from it what Python may pass, checks that, and fills the struct.
//
//   struct Scale {
//     ARGUMENTS(Scale);
//     OUT(void*, out, "T[rows, width]");           // allocated and returned unless it is passed
//     IN(const void*, x, "T[rows, width] rows16");  // a tensor that must be passed
//     OPTIONAL(const float*, factors, "[rows]");    // a tensor or None
//     ARG(float, by);                               // a number that must be passed
//     ARG_OR(bool, twice, false);                   // a number with a default
//     STRIDE(int64_t, x_stride, x, 0);              // in elements, of a dimension of x
//     DIM(int, rows);                               // a name in the shapes above; 0 if none has it
//     bool odd;                                     // what OP computes before the launch
//   };
//
//   OP(scale, Scale) {                              // native.scale(x, by=2.0) in Python
//     require(args.rows < 100, "at most 100 rows, got ", args.rows);
//     return scale(args, call.dtype, call.stream);
//   }
//
// A tensor is described by "types[dimensions] layout":
// - types, separated by |: T is the op's dtype, float32, float16 or bfloat16, H the same without
//   float32; all of an op are one dtype. i32, i64, u8, f32, e4m3 are themselves, the name of an
//   earlier tensor is that one's type, `any` any. Where there is none, the pointer's type says it.
// - dimensions: a name that is the same number wherever it occurs, a number, or _ for any; products,
//   one divisor ("k/8"; "features/gated" is half of them if the flag is set) and "+ 1" may be part of
//   it, and >= before it asks for no less. [*] is any shape.
// - layout: contiguous; `rows`: the outermost stride is free; `strided`: all but the innermost are.
//   16: rows begin at multiples of 16 bytes.
// - place: on the GPU; `host`: in the host's memory; `anywhere`.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "common/dtype.h"

namespace sluice {

enum class Element : uint8_t { kFloat32, kFloat16, kBfloat16, kE4m3, kInt32, kInt64, kUint8, kOther };

// What is passed for a tensor.
struct TensorView {
  void* data;
  const int64_t* sizes;
  const int64_t* strides;  // in elements
  int dim;
  Element element;
  int element_bytes;
  bool on_gpu;
};

struct Field {
  enum Kind : uint8_t { kIn, kOptional, kOut, kNumber, kDim, kStride, kNested };
  enum Store : uint8_t { kPointer, kInt, kInt64, kFloat, kBool, kStruct };

  const char* name;
  size_t offset;
  Store store;
  Element element;  // that a pointer's type says; kOther for void
  Kind kind;
  const char* text = "";  // of a tensor its description, of a stride the tensor
  int axis = 0;           // of a stride; of a number whether it has a default
  double otherwise = 0;
  std::vector<Field> (*nested)() = nullptr;
};

template <typename Type>
constexpr Field::Store store_of() {
  if constexpr (std::is_pointer_v<Type>) return Field::kPointer;
  else if constexpr (std::is_same_v<Type, bool>) return Field::kBool;
  else if constexpr (std::is_same_v<Type, int>) return Field::kInt;
  else if constexpr (std::is_same_v<Type, int64_t>) return Field::kInt64;
  else if constexpr (std::is_same_v<Type, float>) return Field::kFloat;
  else return Field::kStruct;
}

template <typename Type>
constexpr Element element_of() {
  using To = std::remove_const_t<std::remove_pointer_t<Type>>;
  if constexpr (std::is_same_v<To, float>) return Element::kFloat32;
  else if constexpr (std::is_same_v<To, int> || std::is_same_v<To, uint32_t>) return Element::kInt32;
  else if constexpr (std::is_same_v<To, int64_t>) return Element::kInt64;
  else if constexpr (std::is_same_v<To, uint8_t>) return Element::kUint8;
  else return Element::kOther;
}

// The fields of a struct are overloads of `field` for 0, 1 and so on.
template <int N>
using FieldIndex = std::integral_constant<int, N>;

template <typename Struct, int N, typename = void>
struct HasField : std::false_type {};
template <typename Struct, int N>
struct HasField<Struct, N, std::void_t<decltype(Struct::field(FieldIndex<N>{}))>> : std::true_type {};

template <typename Struct, int N = 0>
void append_fields(std::vector<Field>& fields, size_t offset) {
  if constexpr (HasField<Struct, N>::value) {
    Field field = Struct::field(FieldIndex<N>{});
    field.offset += offset;
    if (field.kind == Field::kNested) {
      for (Field inner : field.nested()) {
        inner.offset += field.offset;
        fields.push_back(inner);
      }
    } else {
      fields.push_back(field);
    }
    append_fields<Struct, N + 1>(fields, offset);
  }
}

template <typename Struct>
std::vector<Field> fields_of() {
  std::vector<Field> fields;
  append_fields<Struct>(fields, 0);
  return fields;
}

#define ARGUMENTS(Struct) \
  using Arguments = Struct; \
  static constexpr int kBeforeFields = __COUNTER__

#define SLUICE_FIELD(type, name, ...)                                                           \
  type name;                                                                                    \
  static constexpr ::sluice::Field field(::sluice::FieldIndex<__COUNTER__ - kBeforeFields - 1>) {    \
    return {#name, offsetof(Arguments, name), ::sluice::store_of<type>(),                       \
            ::sluice::element_of<type>(), __VA_ARGS__};                                         \
  }

#define IN(type, name, text) SLUICE_FIELD(type, name, ::sluice::Field::kIn, text)
#define OPTIONAL(type, name, text) SLUICE_FIELD(type, name, ::sluice::Field::kOptional, text)
#define OUT(type, name, text) SLUICE_FIELD(type, name, ::sluice::Field::kOut, text)
#define ARG(type, name) SLUICE_FIELD(type, name, ::sluice::Field::kNumber)
#define ARG_OR(type, name, value) SLUICE_FIELD(type, name, ::sluice::Field::kNumber, "", 1, value)
#define DIM(type, name) SLUICE_FIELD(type, name, ::sluice::Field::kDim)
#define STRIDE(type, name, tensor, axis) \
  SLUICE_FIELD(type, name, ::sluice::Field::kStride, #tensor, axis)
#define NESTED(type, name) \
  SLUICE_FIELD(type, name, ::sluice::Field::kNested, "", 0, 0, &::sluice::fields_of<type>)

// An argument that an op does not take.
struct BadArgument : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// What this GPU, or this process's share of it, does not launch.
struct NotServed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <typename... Words>
void require(bool holds, const Words&... words) {
  if (holds) return;
  std::ostringstream text;
  (text << ... << words);
  throw BadArgument(text.str());
}

struct Op;

// What was passed, beside what the struct holds of it.
struct Call {
  const Op& op;
  const TensorView* const* tensors;  // by field; null where none was passed
  Dtype dtype;                       // T of the descriptions
  cudaStream_t stream;

  // Null where none was passed.
  const TensorView* tensor(const char* name) const;
  bool is(const char* name, Element element) const {
    const TensorView* found = tensor(name);
    return found != nullptr && found->element == element;
  }
  int64_t size(const char* name, int axis) const { return tensor(name)->sizes[axis]; }
  int64_t stride(const char* name, int axis) const { return tensor(name)->strides[axis]; }
  int64_t numel(const char* name) const {
    const TensorView& found = *tensor(name);
    int64_t n = 1;
    for (int i = 0; i < found.dim; ++i) n *= found.sizes[i];
    return n;
  }
  bool bf16() const { return dtype == Dtype::kBfloat16; }
};

// Whether a cache is in FP8: if and only if there are scales for it.
inline void require_scales(const Call& call, const char* cache,
                           std::initializer_list<const char*> scales) {
  const bool fp8 = call.is(cache, Element::kE4m3);
  for (const char* scale : scales) {
    require((call.tensor(scale) != nullptr) == fp8, scale, " must be passed for a cache in "
            "float8_e4m3fn, and for no other");
  }
}

struct Op {
  const char* name;
  std::vector<Field> fields;
  size_t size;  // of the struct
  cudaError_t (*run)(void* arguments, const Call& call);

  Op(const char* name, std::vector<Field> fields, size_t size,
     cudaError_t (*run)(void*, const Call&))
      : name(name), fields(std::move(fields)), size(size), run(run) {
    all().push_back(this);
  }
  static std::vector<Op*>& all() {
    static std::vector<Op*> ops;
    return ops;
  }
};

inline const TensorView* Call::tensor(const char* name) const {
  for (size_t i = 0; i < op.fields.size(); ++i) {
    if (std::strcmp(op.fields[i].name, name) == 0) return tensors[i];
  }
  throw std::logic_error(std::string(op.name) + ": no tensor is called " + name);
}

#define OP(name, Struct)                                                              \
  static cudaError_t run_##name(Struct& args, const ::sluice::Call& call);            \
  static const ::sluice::Op op_##name(                                                \
      #name, ::sluice::fields_of<Struct>(), sizeof(Struct),                           \
      [](void* args, const ::sluice::Call& call) {                                    \
        return run_##name(*static_cast<Struct*>(args), call);                         \
      });                                                                             \
  static cudaError_t run_##name([[maybe_unused]] Struct& args,                        \
                                [[maybe_unused]] const ::sluice::Call& call)

}  // namespace sluice
