#include "inputs/host_values.cuh"
#include "inputs/step_inputs.cuh"

#include <algorithm>

namespace sluice {

OP(store_values, StoreValues) {
  const TensorView &target = *call.tensor("target"), &values = *call.tensor("values");
  require(target.element == values.element && target.dim == values.dim &&
              std::equal(target.sizes, target.sizes + target.dim, values.sizes),
          "target and values must match in type and sizes");
  const int64_t bytes = call.numel("target") * target.element_bytes;
  require(bytes % sizeof(uint32_t) == 0, "values must be words of 32 bits");
  return store_words(static_cast<uint32_t*>(args.target),
                     static_cast<const uint32_t*>(args.values), bytes / sizeof(uint32_t),
                     call.stream);
}

OP(put_values, PutValues) {
  const int64_t size = call.numel("table"), end = std::min<int64_t>(size, INT32_MAX);
  const int64_t *places = args.found, *values = places + args.num;
  for (int i = 0; i < args.num; ++i) {
    require(places[i] >= 0 && places[i] < end, "place ", places[i], " is not in a table of ", size);
    require(values[i] == static_cast<int32_t>(values[i]), "value ", values[i],
            " has more than 32 bits");
  }
  const bool wide = call.is("table", Element::kInt64);
  return put_values({args.table, places, values, wide, args.num}, call.stream);
}

OP(step_inputs, StepInputs) {
  args.on_host = !call.tensor("rows")->on_gpu;
  require(call.tensor("computed")->on_gpu != args.on_host,
          "rows and computed must be both on the GPU or both not");
  return step_inputs(args, call.stream);
}

}  // namespace sluice
