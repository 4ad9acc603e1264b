// Allreduce over all ranks: node reduce-scatter, wire (across.h), node allgather.
//
// A part of the data is cut into as many slices as there are owners (layout.h). Each owner combines its slice over the
// ranks of its node, in rank order, straight out of shared memory; then over the nodes, with its peers; then the result
// goes to all ranks of the node. Every slice is combined in one place, so all ranks hold the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "arena.h"
#include "channel.h"
#include "flat.h"
#include "reducer.h"

namespace dl {

// What to do with elements [first, first + n) of `flat`.
struct Part {
  const Flat& flat;
  std::size_t first;
  std::size_t n;
  const Reducer& reducer;
  double divisor;
};

// Copies the part's first chunk into the channel's stage. allreduce_staged takes its number.
std::uint64_t stage_first(Channel& channel, const Part& part);

// Private arrays, in chunks through the stage. The first chunk has been staged as number `chunk`, and all ranks of the
// node have met since.
void allreduce_staged(Channel& channel, const Part& part, std::uint64_t chunk);

// Arrays that lie at the same places of the arena on all ranks, which have met since the arrays were filled.
void allreduce_direct(Channel& channel, const Part& part, const Arena& arena);

}  // namespace dl
