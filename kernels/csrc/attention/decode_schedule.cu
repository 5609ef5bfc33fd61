// Deals out the decode kernel's work: once per step on the device, for all layers alike.

#include "attention/decode_line.cuh"
#include "common/dependent_launch.cuh"

namespace sluice {
namespace {

// The line of tiles: running sums in tile_ends, then where each span starts. One CTA.
__global__ void __launch_bounds__(1024) decode_schedule_kernel(DecodeSchedule s, int num_spans) {
  __shared__ int warp_sums[32];
  __shared__ int carry, longest;
  if (s.wait_first) {
    wait_for_inputs();
    allow_next();
  }
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (threadIdx.x == 0) carry = longest = 0;
  __syncthreads();
  for (int base = 0; base < s.batch; base += 1024) {
    Cursor c = {};
    c.seq = base + threadIdx.x;
    if (c.seq < s.batch) open_sequence(s.shape, c);
    int n = c.num_tiles;
    const int top = __reduce_max_sync(~0u, n);
    if (lane == 0) atomicMax(&longest, top);
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int up = __shfl_up_sync(~0u, n, d);
      if (lane >= d) n += up;
    }
    if (lane == 31) warp_sums[warp] = n;
    __syncthreads();
    if (warp == 0) {
      int sum = warp_sums[lane];
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int up = __shfl_up_sync(~0u, sum, d);
        if (lane >= d) sum += up;
      }
      warp_sums[lane] = sum;
    }
    __syncthreads();
    n += carry + (warp > 0 ? warp_sums[warp - 1] : 0);
    if (c.seq < s.batch) s.tile_ends[c.seq] = n;
    __syncthreads();
    if (threadIdx.x == 1023) carry = n;
    __syncthreads();
  }
  const DecodeLine line = line_of(s, carry, longest, num_spans);
  if (threadIdx.x == 0) *s.line = line;
  for (int i = threadIdx.x; i < num_spans; i += 1024) s.starts[i] = start_of(s, line, i);
  // Who waits for this kernel waits for what it has waited for.
  if (!s.wait_first) wait_for_inputs();
}

}  // namespace

cudaError_t decode_schedule(const DecodeSchedule& schedule, int num_spans, cudaStream_t stream) {
  return launch_dependent(decode_schedule_kernel, 1, 1024, 0, stream, schedule, num_spans);
}

}  // namespace sluice
