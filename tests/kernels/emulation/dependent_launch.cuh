// In place of the kernels' own: nothing runs beside anything.
#pragma once

namespace sluice {
inline void wait_for_inputs() {}
}  // namespace sluice
