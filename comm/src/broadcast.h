// Broadcast: the root's node reads its stage; one delegate of every other node receives it along a tree and stages it.
#pragma once

#include "channel.h"
#include "message.h"

namespace dl {

// Every rank's arrays get rank `root`'s values. All ranks have agreed on the message.
void broadcast(Channel& channel, const Message& message, int root);

}  // namespace dl
