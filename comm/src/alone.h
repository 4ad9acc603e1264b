// Allreduce where every node has one rank: straight from the caller's memory, without a stage, a meeting or a second thread.
//
// Little data travel with the agreement (little.h), and between two somewhat more come right behind it (same_call.h). Up to 8
// ranks talk pairwise (pairwise.h), or two swap all they have, in pieces: elements go over the wire, are combined in rank
// order, and rounded once. More ranks, and those that DL_COMM_WIRE or DL_COMM_WIRE_DTYPE tell how, take the wire's algorithms
// (wire.h), block by block.
#pragma once

#include <vector>

#include "allreduce.h"
#include "channel.h"
#include "message.h"

namespace dl {

// A whole call: the ranks agree on the message, then every part is combined over all ranks.
void allreduce_alone(Channel& channel, const Message& message, const std::vector<Part>& parts);

}  // namespace dl
