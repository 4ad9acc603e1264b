// The same, with a leg between the nodes that an MPI takes which says that messages may lie on GPUs.
//
// Such an MPI copies and waits in streams of its own, and no document says whether a driver lets those pass a stream of ours
// that waits for something. So here none ever does: the hosts meet, and a stream gets a kernel or a copy only when all that
// it needs is there. Whatever order the driver takes them in, each of them ends; and whoever waits is a host, which looks
// for ranks that have died, and at the time.
//
// The messages are those of the Transport, sent and received: Open MPI takes memory of GPUs in these, and in no allreduce
// that returns before its end.
#pragma once

#include <vector>

#include "channel.h"
#include "device/ipc.h"
#include "message.h"

namespace dl {

class IpcByHosts : public IpcTeam {
 public:
  // `arrived`: memory of this rank's GPU for half of the largest slice.
  IpcByHosts(const Gpu& gpu, std::vector<Cuda::Pointer> scratch, int rank, Cuda::Pointer arrived);

  // The ranks' hosts meet on this channel in the calls to come; the thread that owns it makes them.
  void meet_on(Channel& channel) { channel_ = &channel; }

  // A slice that holds the sum over the node becomes the sum over all nodes, and is there on return.
  void sum_over_nodes(Cuda::Stream stream, const Buffer& slice);

  // Returns once the GPU has done what `stream` holds.
  void finish(Cuda::Stream stream);

  void let_go(Cuda::Stream) override {}  // the channel tells

 private:
  void meet(Cuda::Stream stream, Step step, std::uint32_t number) override;

  Cuda::Pointer arrived_;
  Cuda::Event end_ = nullptr;
  Channel* channel_ = nullptr;
};

}  // namespace dl
