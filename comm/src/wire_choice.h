// Which way data go between the nodes, where it is found by timing: in the first calls of each size the ways take turns, on all
// ranks alike; then the ranks agree on the one that was fastest on the slowest rank.
//
// Between two nodes the ways give the same bits, so which one is taken cannot be seen. Among more they do not: there timing is
// asked for (DL_COMM_WIRE=timed), and a rerun may round otherwise.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <vector>

#include "settings.h"
#include "transport.h"
#include "wire_table.h"

namespace dl {

class WireChoice {
 public:
  // `ways` that are timed; fewer than two: none is.
  explicit WireChoice(std::vector<WireAlgorithm> ways) : ways_(std::move(ways)) {}

  // The ways that may be timed among so many nodes; the first is the one that is taken otherwise.
  static std::vector<WireAlgorithm> ways(const Settings& settings, int nodes);

  bool times(std::size_t bytes) const { return ways_.size() > 1 && bytes >= least; }

  // The way that `bytes` bytes go now, by work(way). Collective over `everyone` when all ways of a size have had their turns.
  template <class Work>
  void take(std::size_t bytes, Transport& everyone, Work work) {
    Size& size = sizes_[size_of(bytes)];
    if (size.decided) return work(size.way);
    const std::size_t turn = size.calls % ways_.size();
    const auto begun = std::chrono::steady_clock::now();
    work(ways_[turn]);
    took(size, turn, std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count(), everyone);
  }

  // What was found so far, as a table that DL_COMM_WIRE takes; empty: nothing.
  std::vector<WireRule> table() const;

 private:
  static constexpr std::size_t least = 64 * 1024;  // bytes
  static constexpr std::size_t turns = 4;          // of each way; the fastest counts

  struct Size {
    std::size_t calls = 0;
    std::vector<double> fastest;  // seconds, of each way
    bool decided = false;
    WireAlgorithm way{};
  };
  static int size_of(std::size_t bytes);  // its power of two
  void took(Size& size, std::size_t turn, double seconds, Transport& everyone);

  std::vector<WireAlgorithm> ways_;
  std::map<int, Size> sizes_;
};

}  // namespace dl
