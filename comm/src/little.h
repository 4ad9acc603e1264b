// Little data between the nodes, which travel with the agreement (same_call.h): a call then takes the wire once.
//
// Where nodes have several ranks, each stages all it has; local rank 0 combines it and talks for the node, while the others
// sleep; then they fetch the result.
#pragma once

#include <cstddef>

#include "allreduce.h"
#include "channel.h"
#include "message.h"

namespace dl {

// How many elements of a call's first part may travel with the agreement, the same number on all ranks: all or none, but
// between two nodes of one rank each the first ones.
std::size_t carried(const Channel& channel, const Part& part);

// All ranks agree on the message, and the first n elements of the part, at least one, are combined over all ranks.
void agree_carrying(Channel& channel, const Message& message, const Part& part, std::size_t n);

}  // namespace dl
