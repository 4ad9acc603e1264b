// What a team needs to reduce arrays that lie on this rank's GPU: pinned memory of the node and a pipeline for each of
// its threads, or NCCL.
//
// Everything is ordered by streams: a reduction begins, on the device, after what its stream holds at the call, and what
// comes later on a stream that follows it begins after the result is there. No call waits for the GPU, but settle. So an
// error of a thread is thrown by the next call on this team.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "arena.h"
#include "device/choice.h"
#include "device/cuda.h"
#include "device/nccl.h"
#include "device/pipeline.h"
#include "message.h"
#include "settings.h"
#include "team.h"

namespace dl {

class GpuTeam {
 public:
  // Collective. `address` lies on this rank's GPU. Throws CommError on every rank if on any of them this cannot be had.
  GpuTeam(Team& team, Arena& arena, const Layout& layout, const Settings& settings, int rank, const void* address);

  // Every rank's arrays, all on its GPU, become the combination over all ranks / rank `root`'s. Returns a ticket at once.
  std::uint64_t allreduce(const Message& message, Op op, Cuda::Stream stream);
  std::uint64_t broadcast(const Message& message, int root, Cuda::Stream stream);

  // What is enqueued on `stream` from now on comes after the ticket's result. Any number of streams may follow a ticket.
  void follow(std::uint64_t ticket, Cuda::Stream stream);

  // Returns once the ranks' part of the ticket is done, and throws what went wrong; its copies back may still be on the
  // way. A ticket is good for one settle; those that nobody settles are forgotten.
  void settle(std::uint64_t ticket);

  const GpuPath& path() const { return path_; }

 private:
  struct Plan;
  using Combine = std::function<void(Lane&, const Buffer&)>;
  struct Flight {
    Cuda::Event done;
    std::uint64_t job;  // the team's ticket; 0: none
  };

  std::vector<std::string> told(const std::string& what, const std::string& mine);  // by all ranks; collective
  void throw_first(const std::string& what, const std::string& mine);               // that is not empty; collective
  void find_path(const void* address);
  void join_nccl();
  void pin_memory();

  std::uint64_t start(const Message& message, const std::vector<Buffer>& buffers, Combine combine, Cuda::Stream stream);
  std::uint64_t through_nccl(const Message& message, Op op, Cuda::Stream stream);
  void check(const Message& message);
  void throw_failure();
  Flight take_event();
  std::uint64_t keep(Flight flight);

  Team& team_;
  Arena& arena_;
  const Layout& layout_;
  const Settings& settings_;
  int rank_;
  std::unique_ptr<Gpu> gpu_;
  GpuPath path_{};
  std::unique_ptr<NcclTeam> nccl_;
  std::vector<std::unique_ptr<Pipeline>> pipelines_;  // one for each thread of the team
  Cuda::Stream gathering_ = nullptr;                  // where a reduction's ends come together
  Cuda::Event ready_ = nullptr;

  std::mutex guard_;  // of what follows, and of the pipelines' framework side
  std::uint64_t tickets_ = 0;
  std::map<std::uint64_t, Flight> flights_;
  std::vector<Cuda::Event> idle_;

  std::mutex failure_guard_;
  std::exception_ptr failure_;  // of a job; guarded by failure_guard_
};

}  // namespace dl
