// Memory that the ranks of one node share.
//
// It has no name that outlives anything: rank 0 of the node makes an anonymous file (memfd) and the others open it
// through /proc; where that is forbidden, a name in /dev/shm serves until all have attached, and is then removed. So
// nothing is left behind, even after SIGKILL of everybody.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "transport.h"

namespace dl {

class Segment {
 public:
  Segment(void* base, std::size_t bytes) : base_(base), bytes_(bytes) {}
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  char* base() const { return static_cast<char*>(base_); }
  std::size_t bytes() const { return bytes_; }

 private:
  void* base_;
  std::size_t bytes_;
};

// Makes `bytes` zeroed bytes that all ranks of `node` map (at different addresses). Collective over `node`. `how` is
// DL_COMM_SHARED_MEMORY, or "threads" where the ranks are threads of one process and map it once. Returns
// nullptr on every rank if on any of them it cannot be had; `why` then says why not, on all of them the same.
std::shared_ptr<Segment> share(Transport& node, std::size_t bytes, const std::string& how, std::string& why);

}  // namespace dl
