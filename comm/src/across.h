// Allreduce where there are several nodes. Each owner (layout.h) sums its slice over its node into accumulators, sums
// these with its peers on the other nodes over the wire, and gives the result to its node:
//
//   node 0: ranks 0 1     rank 0 sums slice a, rank 1 slice b   |  0 <-wire-> 2 (slice a)   |  0 gives a to 1, 1 gives b to 0
//   node 1: ranks 2 3     rank 2 sums slice a, rank 3 slice b   |  1 <-wire-> 3 (slice b)   |  2 gives a to 3, 3 gives b to 2
//
// All links are busy, not one leader's. The wire takes DL_COMM_PIPELINE_CHUNK_KB for each node at a time, so that the
// messages stay long however many nodes share the data; while it does, the node sums what comes next and gets what came
// before (pipeline.h).
#pragma once

#include <cstdint>

#include "allreduce.h"
#include "arena.h"
#include "channel.h"

namespace dl {

// As allreduce_staged and allreduce_direct, for layouts of several nodes.
void staged_across_nodes(Channel& channel, const Part& part, std::uint64_t chunk);
void direct_across_nodes(Channel& channel, const Part& part, const Arena& arena);

// Calls work(way) with the way that a rank's `bytes` bytes go over the wire: as the settings say, or as is found by timing.
template <class Work>
void by_the_best_way(Channel& channel, std::size_t bytes, Work work) {
  const Layout& layout = channel.layout();
  const bool all_talk = layout.owners * layout.nodes == channel.everyone().size();  // those who do not could not take turns
  if (all_talk && channel.wire_choice().times(bytes)) channel.wire_choice().take(bytes, channel.everyone(), work);
  else work(wire_algorithm(channel.settings().wire, bytes, layout.nodes));
}

// Accumulators that one owner takes over the wire at once / n of them over the wire, by this algorithm, or packed.
std::size_t wire_elements(const Channel& channel, const Reducer& reducer);
void over_the_wire(Channel& channel, WireAlgorithm way, const Reducer& reducer, char* acc, std::size_t n);

// A part of one buffer of float32 or float64 that holds the sum over this rank's node: becomes the sum over all nodes. The
// peers of this rank call, too.
void sum_across_nodes(Channel& channel, const Part& part);

}  // namespace dl
