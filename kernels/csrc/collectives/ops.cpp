#include "collectives/all_reduce.cuh"

namespace sluice {

OP(all_reduce, AllReduce) {
  const int bytes = args.width * (call.dtype == Dtype::kFloat32 ? 4 : 2);
  require(bytes % 16 == 0 && bytes > 0 && bytes <= kExchangeVectors * 16,
          "rows must be multiples of 16 bytes, of at most ", kExchangeVectors * 16, ", got ", bytes);
  require(args.ranks <= kMostRanks && args.rank >= 0 && args.rank < args.ranks, "rank ", args.rank,
          " of ", args.ranks, ", at most ", kMostRanks);
  require((args.residual == nullptr) == (args.weight == nullptr), "residual and weight go together");
  args.wide = call.is("weight", Element::kFloat32) && call.dtype != Dtype::kFloat32;
  return args.rows == 0 ? cudaSuccess : all_reduce(args, call.dtype, call.stream);
}

}  // namespace sluice
