// Which way the arrays on GPUs go.
#pragma once

#include <string>
#include <vector>

#include "layout.h"
#include "settings.h"

namespace dl {

// What a rank tells the others of its GPU.
struct GpuFacts {
  std::string trouble;      // why this rank cannot reduce on a GPU at all; empty: it can
  std::string uuid;
  int nccl = 0;             // version, as 22105 for 2.21.5; 0: none
  std::string why_no_nccl;
  std::string why_no_mpi;   // why its MPI does not take memory of GPUs; empty: it says that it does
};

std::string to_text(const GpuFacts& facts);
GpuFacts facts_of(const std::string& text);

enum class Way {
  host,       // through pinned memory, combined by the host
  nccl,       // NCCL over all ranks
  nccl_node,  // NCCL over the ranks of a node, the host between nodes
  ipc,        // the ranks of a node in each other's GPU memory, the host between nodes
  mpi,        // the same, and MPI takes the GPUs' memory between nodes
};

struct GpuPath {
  Way way;
  std::string why;   // "NCCL 2.21.5", "the host, since ranks 0 and 1 share a GPU"
  std::string hint;  // what else there is; empty: nothing
  bool only_if_soon = false;  // another way is better where the GPUs meet late: ranks have one in time slices
};

// The ways to try, best first; the host is the last, and always there unless another is demanded. `all` are every rank's facts.
// All ranks come to the same. Throws CommError on all where a way is demanded and cannot be, or a rank is in trouble.
std::vector<GpuPath> choose(const Settings& settings, const std::vector<GpuFacts>& all, const Layout& layout);

std::string version_text(int nccl);  // "2.21.5"

}  // namespace dl
