#include "collectives/all_reduce.cuh"

namespace sluice {

OP(all_reduce, AllReduce) {
  const int size = call.dtype == Dtype::kFloat32 ? 4 : 2;
  const int64_t bytes = call.numel("x") * size;
  require(bytes % 16 == 0 && args.width * size % 16 == 0, "x and its rows must be multiples of 16 "
          "bytes, got ", bytes, " in rows of ", args.width * size);
  require(args.width > 0 && args.width * size <= kExchangeVectors * 16, "rows may have at most ",
          kExchangeVectors * 16, " bytes, got ", args.width * size);
  require(args.ranks <= kMostRanks && args.rank >= 0 && args.rank < args.ranks, "rank ", args.rank,
          " of ", args.ranks, ", at most ", kMostRanks);
  require((args.residual == nullptr) == (args.weight == nullptr), "residual and weight go together");
  require(args.weight == nullptr || call.numel("x") % args.width == 0,
          "x must have whole rows to be normed");
  args.vectors = bytes / 16;
  args.wide = call.is("weight", Element::kFloat32) && call.dtype != Dtype::kFloat32;
  return bytes == 0 ? cudaSuccess : all_reduce(args, call.dtype, call.stream);
}

}  // namespace sluice
