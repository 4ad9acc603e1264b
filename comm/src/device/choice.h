// Which way the arrays on GPUs go.
#pragma once

#include <string>
#include <vector>

namespace dl {

// What a rank tells the others of its GPU.
struct GpuFacts {
  std::string trouble;      // why this rank cannot reduce on a GPU at all; empty: it can
  std::string uuid;
  int nccl = 0;             // version, as 22105 for 2.21.5; 0: none
  std::string why_no_nccl;
};

std::string to_text(const GpuFacts& facts);
GpuFacts facts_of(const std::string& text);

struct GpuPath {
  bool nccl;
  std::string why;  // "NCCL 2.21.5", "the host, since ranks 0 and 1 share a GPU"
};

// `wanted` is DL_COMM_GPU_PATH; `all` are every rank's facts, `node_of` every rank's node. All ranks come to the same
// path. Throws CommError on all where NCCL is demanded and cannot be, or a rank is in trouble.
GpuPath choose(const std::string& wanted, const std::vector<GpuFacts>& all, const std::vector<int>& node_of);

std::string version_text(int nccl);  // "2.21.5"

}  // namespace dl
