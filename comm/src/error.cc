#include "error.h"

#include <cstdio>

namespace dl {

CommError no_answer(int silent, int waiting, double seconds) {
  char text[128];
  std::snprintf(text, sizeof text, "rank %d has not answered rank %d within %g s", silent, waiting, seconds);
  return CommError(text, "it has ended, hangs, makes other calls, or is slower than DL_COMM_TIMEOUT_S allows");
}

}  // namespace dl
