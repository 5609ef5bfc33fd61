// In place of the kernels' own, with loads that are no PTX.
#pragma once

#include <type_traits>

#include "common/dtype.h"
#include "warp.h"

namespace sluice {

inline float to_float(float x) { return x; }
inline float to_float(__half x) { return __half2float(x); }
inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T>
T from_float(float x) {
  return T(x);
}

template <typename T>
float rounded(float x) {
  return to_float(from_float<T>(x));
}

template <typename T>
struct alignas(16) Vector {
  static constexpr int kSize = 16 / sizeof(T);
  T x[kSize];
};

template <typename T, bool kWide>
struct VectorWeights {
  std::conditional_t<kWide, float, T> own[Vector<T>::kSize];

  static VectorWeights load(const void* weights, int vector) {
    return static_cast<const VectorWeights*>(weights)[vector];
  }
  float operator[](int e) const { return to_float(own[e]); }
};

template <typename T, bool kWide>
float weighted(float x, float scale, float weight) {
  return (kWide ? x * scale : rounded<T>(x * scale)) * weight;
}

template <typename T>
struct Type {
  using type = T;
};

template <typename Launch>
cudaError_t with_type(Dtype dtype, Launch&& launch) {
  if (dtype == Dtype::kFloat32) return launch(Type<float>{});
  return dtype == Dtype::kFloat16 ? launch(Type<__half>{}) : launch(Type<__nv_bfloat16>{});
}

inline uint4 load_once(const void* from) { return *static_cast<const uint4*>(from); }

}  // namespace sluice
