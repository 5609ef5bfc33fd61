// Fills and checks an op's struct from what was passed, as its fields describe it (arguments.h).
#pragma once

#include <array>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/arguments.h"

namespace sluice {

constexpr int kMostFields = 40;
constexpr int kMostDims = 5;
constexpr size_t kMostBytes = 1024;  // of a struct

inline const char* const kElementNames[] = {"float32", "float16", "bfloat16", "float8_e4m3fn",
                                            "int32",   "int64",   "uint8",    "another type"};

// A dimension: number * names / divisor + added.
struct DimRule {
  bool at_least = false;
  bool any = false;
  int64_t number = 1;
  std::vector<int> names;
  int divisor_name = -1;  // of a flag: 1 + its value
  int64_t divisor = 1;
  int64_t added = 0;
};

struct TensorRule {
  std::vector<Element> elements;
  bool is_dtype = false, is_half = false, any_element = false;
  int like = -1;  // a field
  bool any_shape = false;
  std::vector<DimRule> dims;
  int free_strides = 0;
  bool aligned = false, on_host = false, anywhere = false;
};

// An op whose descriptions have been read.
class Binder {
 public:
  explicit Binder(const Op& op) : op_(op), rules_(op.fields.size()), name_of_(op.fields.size(), -1) {
    if (op.fields.size() > kMostFields || op.size > kMostBytes) throw std::logic_error(op.name);
    for (size_t i = 0; i < op.fields.size(); ++i) {
      const Field& field = op.fields[i];
      if (field.kind <= Field::kOut) {
        rules_[i] = read(field);
        tensors_.push_back(static_cast<int>(i));
      }
    }
    for (size_t i = 0; i < op.fields.size(); ++i) {
      const Field& field = op.fields[i];
      if (field.kind == Field::kNumber || field.kind == Field::kDim) {
        const auto found = names_.find(field.name);
        if (found != names_.end()) name_of_[i] = found->second;
      } else if (field.kind == Field::kStride) {
        strides_.emplace_back(static_cast<int>(i), index_of(field.text));
      }
      if (field.kind <= Field::kNumber) passed_.push_back(static_cast<int>(i));
    }
  }

  const Op& op() const { return op_; }
  // The fields that may be passed, in order; OUT ones by name only.
  const std::vector<int>& passed() const { return passed_; }

  struct Values {
    const TensorView* tensors[kMostFields] = {};
    double numbers[kMostFields];
    TensorView views[kMostFields];
    bool given[kMostFields] = {};
  };

  // allocate(field, element, sizes, dim) makes the view of an OUT that was not passed.
  template <typename Allocate>
  void run(Values& values, cudaStream_t stream, Allocate&& allocate) const {
    alignas(16) uint8_t memory[kMostBytes];
    std::memset(memory, 0, op_.size);
    Names names;
    names.fill(-1);
    Dtype dtype = Dtype::kFloat32;
    bool has_dtype = false;
    store_numbers(values, memory, names);
    for (const int i : tensors_) {
      if (values.tensors[i] != nullptr) bind_element(i, values, dtype, has_dtype);
    }
    for (const bool out : {false, true}) {
      for (const int i : tensors_) {
        const bool is_out = op_.fields[i].kind == Field::kOut;
        if (values.tensors[i] != nullptr && is_out == out) bind_dims(i, *values.tensors[i], names);
      }
    }
    for (const int i : tensors_) {
      const Field& field = op_.fields[i];
      if (values.tensors[i] == nullptr && field.kind == Field::kOut) {
        int64_t sizes[kMostDims];
        const TensorRule& rule = rules_[i];
        const int dim = static_cast<int>(rule.dims.size());
        for (int d = 0; d < dim; ++d) sizes[d] = value_of(rule.dims[d], names);
        values.views[i] = allocate(i, element_for(rule, i, dtype), sizes, dim);
        values.tensors[i] = &values.views[i];
      } else if (values.tensors[i] != nullptr) {
        check_layout(i, *values.tensors[i], names);
      }
      void* data = values.tensors[i] == nullptr ? nullptr : values.tensors[i]->data;
      std::memcpy(memory + field.offset, &data, sizeof(data));
    }
    for (size_t i = 0; i < op_.fields.size(); ++i) {
      if (op_.fields[i].kind != Field::kDim) continue;
      const int64_t size = name_of_[i] < 0 ? 0 : std::max<int64_t>(names[name_of_[i]], 0);
      store_integer(op_.fields[i], memory, size);
    }
    for (const auto& [i, tensor] : strides_) {
      const TensorView* view = values.tensors[tensor];
      store_integer(op_.fields[i], memory, view == nullptr ? 0 : view->strides[op_.fields[i].axis]);
    }
    const Call call{op_, values.tensors, dtype, stream};
    const cudaError_t error = op_.run(memory, call);
    if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
  }

 private:
  using Names = std::array<int64_t, 32>;

  int index_of(const std::string& name) const {
    for (size_t i = 0; i < op_.fields.size(); ++i) {
      if (name == op_.fields[i].name) return static_cast<int>(i);
    }
    throw std::logic_error(std::string(op_.name) + ": nothing is called " + name);
  }

  int name(const std::string& text) {
    const auto [at, added] = names_.emplace(text, static_cast<int>(names_.size()));
    if (names_.size() > std::tuple_size_v<Names>) throw std::logic_error("too many dimensions");
    return at->second;
  }

  static std::vector<std::string> split(const std::string& text, char by) {
    std::vector<std::string> parts;
    std::istringstream from(text);
    for (std::string part; std::getline(from, part, by);) {
      const size_t first = part.find_first_not_of(' '), last = part.find_last_not_of(' ');
      if (first != std::string::npos) parts.push_back(part.substr(first, last - first + 1));
    }
    return parts;
  }

  TensorRule read(const Field& field) {
    TensorRule rule;
    const std::string text = field.text;
    const size_t open = text.find('['), close = text.find(']');
    for (const std::string& type : split(text.substr(0, open), '|')) {
      static const std::map<std::string, Element> kElements = {
          {"f32", Element::kFloat32}, {"e4m3", Element::kE4m3}, {"i32", Element::kInt32},
          {"i64", Element::kInt64},   {"u8", Element::kUint8}};
      const auto found = kElements.find(type);
      if (type == "T") rule.is_dtype = true;
      else if (type == "H") rule.is_dtype = rule.is_half = true;
      else if (type == "any") rule.any_element = true;
      else if (found != kElements.end()) rule.elements.push_back(found->second);
      else rule.like = index_of(type);
    }
    if (open == 0) rule.elements.push_back(field.element);
    const std::string inner = text.substr(open + 1, close - open - 1);
    if (inner == "*") rule.any_shape = true;
    else for (const std::string& one : split(inner, ',')) rule.dims.push_back(read_dim(one));
    if (field.kind == Field::kOut && (rule.any_shape || (!rule.is_dtype && rule.elements.empty()))) {
      throw std::logic_error(std::string(op_.name) + ": how large is " + field.name + "?");
    }
    for (const std::string& word : split(text.substr(close + 1), ' ')) {
      const int dim = static_cast<int>(rule.dims.size());
      if (word == "rows") rule.free_strides = 1;
      else if (word == "rows16") rule.free_strides = 1, rule.aligned = true;
      else if (word == "strided") rule.free_strides = dim - 1;
      else if (word == "16") rule.aligned = true;
      else if (word == "host") rule.on_host = true;
      else if (word == "anywhere") rule.anywhere = true;
      else throw std::logic_error(std::string(op_.name) + ": what is " + word + "?");
    }
    return rule;
  }

  DimRule read_dim(std::string text) {
    DimRule rule;
    if (text.rfind(">=", 0) == 0) {
      rule.at_least = true;
      text = text.substr(2);
    }
    if (const size_t plus = text.find('+'); plus != std::string::npos) {
      rule.added = std::stoll(text.substr(plus + 1));
      text = text.substr(0, plus);
    }
    if (const size_t slash = text.find('/'); slash != std::string::npos) {
      const std::string by = split(text.substr(slash + 1), ' ')[0];
      if (std::isdigit(by[0])) rule.divisor = std::stoll(by);
      else rule.divisor_name = name(by);
      text = text.substr(0, slash);
    }
    for (const std::string& factor : split(text, '*')) {
      if (factor == "_") rule.any = true;
      else if (std::isdigit(factor[0])) rule.number *= std::stoll(factor);
      else rule.names.push_back(name(factor));
    }
    return rule;
  }

  void store_numbers(Values& values, uint8_t* memory, Names& names) const {
    for (size_t i = 0; i < op_.fields.size(); ++i) {
      const Field& field = op_.fields[i];
      if (field.kind != Field::kNumber) continue;
      if (!values.given[i]) {
        require(field.axis == 1, field.name, " is missing");
        values.numbers[i] = field.otherwise;
      }
      const double number = values.numbers[i];
      if (field.store == Field::kFloat) {
        const float value = static_cast<float>(number);
        std::memcpy(memory + field.offset, &value, sizeof(value));
      } else {
        store_integer(field, memory, static_cast<int64_t>(number));
      }
      if (name_of_[i] >= 0) names[name_of_[i]] = static_cast<int64_t>(number);
    }
  }

  static void store_integer(const Field& field, uint8_t* memory, int64_t number) {
    if (field.store == Field::kBool) {
      const bool value = number != 0;
      std::memcpy(memory + field.offset, &value, sizeof(value));
    } else if (field.store == Field::kInt64) {
      std::memcpy(memory + field.offset, &number, sizeof(number));
    } else {
      const int value = static_cast<int>(number);
      require(value == number, field.name, " must have at most 32 bits, got ", number);
      std::memcpy(memory + field.offset, &value, sizeof(value));
    }
  }

  void bind_element(int i, const Values& values, Dtype& dtype, bool& has_dtype) const {
    const TensorRule& rule = rules_[i];
    const TensorView& view = *values.tensors[i];
#ifndef SLUICE_EMULATED  // there the host is the GPU
    if (!rule.anywhere && view.on_gpu == rule.on_host) {
      require(false, op_.fields[i].name, rule.on_host ? " must be in the host's memory"
                                                      : " must be on the GPU");
    }
#endif
    if (rule.any_element) return;
    for (const Element element : rule.elements) {
      if (view.element == element) return;
    }
    if (rule.like >= 0 && values.tensors[rule.like] != nullptr &&
        values.tensors[rule.like]->element == view.element) {
      return;
    }
    if (rule.is_dtype && view.element <= Element::kBfloat16) {
      const Dtype own = static_cast<Dtype>(view.element);
      if (!has_dtype && !(rule.is_half && own == Dtype::kFloat32)) {
        dtype = own;
        has_dtype = true;
      }
      if (has_dtype && own == dtype) return;
    }
    refuse_element(i, values, dtype, has_dtype);
  }

  [[noreturn]] void refuse_element(int i, const Values& values, Dtype dtype, bool has) const {
    const TensorRule& rule = rules_[i];
    std::string allowed;
    const auto add = [&](const char* word) { allowed += (allowed.empty() ? "" : " or ") + std::string(word); };
    if (rule.is_dtype && has) add(kElementNames[static_cast<int>(dtype)]);
    else if (rule.is_half) add("bfloat16 or float16");
    else if (rule.is_dtype) add("float32, float16 or bfloat16");
    for (const Element element : rule.elements) add(kElementNames[static_cast<int>(element)]);
    if (rule.like >= 0) add((std::string("like ") + op_.fields[rule.like].name).c_str());
    throw BadArgument(std::string(op_.fields[i].name) + " must be " + allowed + ", got " +
                      kElementNames[static_cast<int>(values.tensors[i]->element)]);
  }

  Element element_for(const TensorRule& rule, int i, Dtype dtype) const {
    return rule.is_dtype ? static_cast<Element>(dtype) : rule.elements[0];
  }

  // -1 where a name has no value yet.
  static int64_t value_of(const DimRule& rule, const Names& names) {
    int64_t value = rule.number;
    for (const int name : rule.names) {
      if (names[name] < 0) return -1;
      value *= names[name];
    }
    return value / divisor_of(rule, names) + rule.added;
  }

  static int64_t divisor_of(const DimRule& rule, const Names& names) {
    if (rule.divisor_name < 0) return rule.divisor;
    return 1 + names[rule.divisor_name];
  }

  void bind_dims(int i, const TensorView& view, Names& names) const {
    const TensorRule& rule = rules_[i];
    if (rule.any_shape) return;
    bool fits = view.dim == static_cast<int>(rule.dims.size());
    for (int d = 0; fits && d < view.dim; ++d) {
      const DimRule& dim = rule.dims[d];
      if (dim.any || dim.at_least) continue;
      int64_t known = dim.number;
      int open = -1, num_open = 0;
      for (const int name : dim.names) {
        if (names[name] < 0) open = name, ++num_open;
        else known *= names[name];
      }
      if (num_open != 1) continue;  // checked with the layout, when all that can be known is
      const int64_t whole = (view.sizes[d] - dim.added) * divisor_of(dim, names);
      fits = known > 0 ? whole % known == 0 : false;
      if (fits) names[open] = whole / known;
    }
    if (!fits) refuse_shape(i, view, names);
  }

  void check_layout(int i, const TensorView& view, const Names& names) const {
    const TensorRule& rule = rules_[i];
    bool fits = true;
    for (int d = 0; d < static_cast<int>(rule.dims.size()); ++d) {
      if (rule.dims[d].any) continue;
      const int64_t wanted = value_of(rule.dims[d], names);
      fits &= rule.dims[d].at_least ? view.sizes[d] >= wanted : view.sizes[d] == wanted;
    }
    bool is_empty = false;
    for (int d = 0; d < view.dim; ++d) is_empty |= view.sizes[d] == 0;
    int64_t stride = 1;
    for (int d = view.dim - 1; d >= rule.free_strides && fits && !is_empty; --d) {
      fits &= view.strides[d] == stride || view.sizes[d] == 1;
      stride *= view.sizes[d];
    }
    if (!fits) refuse_shape(i, view, names);
    if (!rule.aligned) return;
    require(reinterpret_cast<uintptr_t>(view.data) % 16 == 0, op_.fields[i].name,
            " must start at a multiple of 16 bytes");
    const int bytes = view.element_bytes;
    for (int d = 0; d < rule.free_strides && d < view.dim; ++d) {
      require(view.strides[d] * bytes % 16 == 0, "rows of ",
              op_.fields[i].name, " must be multiples of 16 bytes apart, got ",
              view.strides[d] * bytes);
    }
  }

  [[noreturn]] void refuse_shape(int i, const TensorView& view, const Names& names) const {
    std::ostringstream text;
    text << op_.fields[i].name << " must be " << op_.fields[i].text;
    const char* before = " where ";
    for (const auto& [name, index] : names_) {
      if (names[index] < 0 || std::strstr(op_.fields[i].text, name.c_str()) == nullptr) continue;
      text << before << name << " = " << names[index];
      before = ", ";
    }
    text << ", got sizes [";
    for (int d = 0; d < view.dim; ++d) text << (d ? ", " : "") << view.sizes[d];
    text << "] and strides [";
    for (int d = 0; d < view.dim; ++d) text << (d ? ", " : "") << view.strides[d];
    throw BadArgument(text.str() + "]");
  }

  const Op& op_;
  std::map<std::string, int> names_;  // of dimensions
  std::vector<TensorRule> rules_;
  std::vector<int> name_of_;  // of a field in dimensions
  std::vector<int> tensors_, passed_;
  std::vector<std::pair<int, int>> strides_;
};

}  // namespace sluice
