// In place of the kernels' own: a wait that does not end is one in which nobody comes any more.
#pragma once

#include <cstdlib>

namespace sluice {

class SpinLimit {
 public:
  void check() {
    if (++rounds_ == 1 << 20) std::abort();
  }

 private:
  int rounds_ = 0;
};

}  // namespace sluice
