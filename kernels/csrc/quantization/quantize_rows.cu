// Rows rounded to e4m3 for the products after them, by the kernels that make them: what they make
// is rounded to its own type first, as if it had been written and read again.

#include "common/reduce.cuh"
#include "norm_rope/rows.cuh"
#include "quantization/fp8.cuh"
#include "quantization/quantize_rows.cuh"

namespace sluice {
namespace {

constexpr float kLargest = 448.f;   // of e4m3
constexpr float kMinScale = 1e-12f;  // of a row of zeros

// What makes the rows. This takes them as they are.
template <typename T>
struct Given {
  using Element = T;
  const T* x;
  int width;
  int64_t x_stride;

  template <int kVectors>
  __device__ __forceinline__ void make(Vector<T> (&values)[kVectors], int64_t row) const {
    wait_for_inputs();
    allow_next();
    const auto* src = reinterpret_cast<const Vector<T>*>(x + row * x_stride);
    const int last = width / Vector<T>::kSize - 1;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      // All loads without a branch; what is loaded twice is stored once.
      values[j] = src[min(static_cast<int>(j * blockDim.x + threadIdx.x), last)];
    }
  }
};

template <typename T>
struct Normed {
  using Element = T;
  RmsNorm norm;
  int width;

  template <int kVectors>
  __device__ __forceinline__ void make(Vector<T> (&values)[kVectors], int64_t) const {
    normed_row<false>(values, norm);
  }
};

template <typename T>
struct Gated {
  using Element = T;
  const T* x;  // [rows, 2 * width]
  int width;

  template <int kVectors>
  __device__ __forceinline__ void make(Vector<T> (&values)[kVectors], int64_t row) const {
    wait_for_inputs();
    allow_next();
    const int vectors = width / Vector<T>::kSize;
    const auto* gate = reinterpret_cast<const Vector<T>*>(x + row * 2 * width);
    Vector<T> up[kVectors];
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      // All loads without a branch.
      const int i = min(static_cast<int>(j * blockDim.x + threadIdx.x), vectors - 1);
      values[j] = gate[i];
      up[j] = gate[i + vectors];
    }
#pragma unroll
    for (int j = 0; j < kVectors; ++j) values[j] = gated<Activation::kSilu>(values[j], up[j]);
  }
};

template <typename Source, int kVectors>
__global__ void __launch_bounds__(1024) rounded_rows_kernel(const Source source, uint8_t* out,
                                                            float* scales) {
  using T = typename Source::Element;
  const int vectors = source.width / Vector<T>::kSize;
  const int64_t row = blockIdx.x;
  Vector<T> values[kVectors];
  source.make(values, row);
  float largest = 0.f;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    if (static_cast<int>(j * blockDim.x + threadIdx.x) >= vectors) break;
#pragma unroll
    for (int e = 0; e < Vector<T>::kSize; ++e) {
      largest = fmaxf(largest, fabsf(to_float(values[j].x[e])));
    }
  }
  const float scale = fmaxf(block_max(largest) / kLargest, kMinScale);
  if (threadIdx.x == 0) scales[row] = scale;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int i = j * blockDim.x + threadIdx.x;
    if (i >= vectors) break;
    reinterpret_cast<Fp8Vector<T>*>(out + row * source.width)[i] = to_e4m3(values[j], 1.f / scale);
  }
}

template <typename Source>
cudaError_t launch(const RoundedRows& p, const Source& source, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  const int vectors = p.width / Vector<typename Source::Element>::kSize;
  auto run = [&](auto kernel, int threads) {
    return launch_dependent(kernel, p.rows, threads, 0, stream, source,
                            static_cast<uint8_t*>(p.out), p.scales);
  };
  if (vectors <= 1024) return run(rounded_rows_kernel<Source, 1>, row_threads(vectors));
  if (vectors > 1024 * kRowVectors) return cudaErrorInvalidValue;
  const int threads = row_threads((vectors + kRowVectors - 1) / kRowVectors);
  return run(rounded_rows_kernel<Source, kRowVectors>, threads);
}

}  // namespace

cudaError_t round_rows(const RoundedRows& rounded, const void* x, int64_t x_stride, Dtype dtype,
                       cudaStream_t stream) {
  return with_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    return launch(rounded, Given<T>{static_cast<const T*>(x), rounded.width, x_stride}, stream);
  });
}

cudaError_t rms_norm_rounded(const RoundedRows& rounded, const RmsNorm& norm, Dtype dtype,
                             cudaStream_t stream) {
  return with_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    return launch(rounded, Normed<T>{norm, norm.width}, stream);
  });
}

cudaError_t silu_mul_rounded(const RoundedRows& rounded, const void* x, Dtype dtype,
                             cudaStream_t stream) {
  return with_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    return launch(rounded, Gated<T>{static_cast<const T*>(x), rounded.width}, stream);
  });
}

}  // namespace sluice
