// Which kernels this x86-64 processor runs.
#include <cstring>

#include "reducer_choice.h"

namespace dl {

const Kernels* kernels_here(int& count) {
  static const Kernels all[] = {
      {"avx512", kernels_avx512,
       __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl")},
      {"avx2", kernels_avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")},
      {"portable", kernels_portable, true},
  };
  count = 3;
  return all;
}

}  // namespace dl
