#include "reducer.h"

#include <atomic>
#include <cstring>

#include "reducer_choice.h"

namespace dl {
namespace {

const Kernels& best() {
  int count = 0;
  const Kernels* all = kernels_here(count);
  int i = 0;
  while (!all[i].runs_here) ++i;  // the last always runs
  return all[i];
}

std::atomic<const Kernels*>& chosen() {
  static std::atomic<const Kernels*> one{&best()};
  return one;
}

}  // namespace

const Reducer& reducer(Dtype dtype, Op op, int level) {
  const int column = op == Op::sum || op == Op::mean ? 0 : static_cast<int>(op) - 1;
  return chosen().load()->table().of[level][static_cast<int>(dtype)][column];
}

void copy_past_caches(void* to, const void* from, std::size_t bytes) {
  chosen().load()->table().copy_past_caches(to, from, bytes);
}

const char* kernels_in_use() { return chosen().load()->name; }

bool use_kernels(const char* name) {
  int count = 0;
  const Kernels* all = kernels_here(count);
  for (int i = 0; i < count; ++i)
    if (std::strcmp(all[i].name, name) == 0 && all[i].runs_here) {
      chosen().store(&all[i]);
      return true;
    }
  return false;
}

}  // namespace dl
