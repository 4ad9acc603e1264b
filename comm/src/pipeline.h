// Work that passes three stations, block by block: it is summed over the node, carried over the wire, given to the node.
// While one block is on the wire, the next is summed and the one before is given:
//
//   this thread:      sum 0 | sum 1   | give 0, sum 2 | give 1, sum 3 | give 2 ...
//   progress thread:        | carry 0 | carry 1       | carry 2       | carry 3 ...
//
// Blocks are carried in order, one at a time. At most two, k and k + 1, are anywhere between the first station and the
// last, so two sets of accumulators serve, one for the even and one for the odd blocks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "queue.h"

namespace dl {

// sum(k), give(k) in this thread, carry(k) in the progress thread, or in this one where there is nothing to overlap. Without
// one nothing is carried. After an error, which it throws on, abandon() is called to end what is being carried, and awaited.
template <class Sum, class Carry, class Give, class Abandon>
void pipelined(std::size_t blocks, Queue* progress, Sum sum, Carry carry, Give give, Abandon abandon) {
  if (blocks == 1) {
    sum(std::size_t{0});
    if (progress != nullptr) carry(std::size_t{0});
    give(std::size_t{0});
    return;
  }
  std::uint64_t before = 0;  // the ticket of block k - 1
  try {
    for (std::size_t k = 0; k <= blocks; ++k) {
      std::uint64_t ticket = 0;
      if (k < blocks) {
        sum(k);
        if (progress != nullptr) ticket = progress->start([&carry, k] { carry(k); });
      }
      if (k > 0) {
        if (progress != nullptr) progress->wait(before, true);
        give(k - 1);
      }
      before = ticket;
    }
  } catch (...) {
    abandon();
    if (progress != nullptr) progress->drain();
    throw;
  }
}

}  // namespace dl
