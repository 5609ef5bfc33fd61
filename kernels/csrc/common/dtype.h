// The element type that a launch is for.
#pragma once

namespace sluice {

enum class Dtype { kFloat32, kFloat16, kBfloat16 };

}  // namespace sluice
