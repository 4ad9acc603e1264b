// The kernels that were compiled for this architecture, best first. CMake adds the file that defines them.
#pragma once

#include "reducer.h"

namespace dl {

struct Kernels {
  const char* name;
  const KernelTable& (*table)();
  bool runs_here;
};

const Kernels* kernels_here(int& count);

}  // namespace dl
