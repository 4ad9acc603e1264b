// What a team needs to reduce arrays that lie on this rank's GPU: pinned memory of the node and a pipeline for each of
// its threads; and where the GPUs reach each other, NCCL or CUDA IPC.
//
// Everything is ordered by streams: a reduction begins, on the device, after what its stream holds at the call, and what
// comes later on a stream that follows it begins after the result is there. No call waits for the GPU, but await_result, and where
// MPI takes the GPUs' memory follow. So an error of a thread is thrown by the next call on this team.
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
#include "device/blocks.h"
#include "device/choice.h"
#include "device/cuda.h"
#include "device/ipc.h"
#include "device/ipc_by_hosts.h"
#include "device/nccl.h"
#include "device/pipeline.h"
#include "device/plan.h"
#include "message.h"
#include "segment.h"
#include "settings.h"
#include "team.h"

namespace dl {

class GpuTeam {
 public:
  // Collective. `address` lies on this rank's GPU, where `stream` runs. Throws CommError on every rank if on any of them this
  // cannot be had.
  GpuTeam(Team& team, Arena& arena, const Layout& layout, const Settings& settings, int rank, const void* address,
          Cuda::Stream stream);

  // Every rank's arrays, all on its GPU, become the combination over all ranks / rank `root`'s. Returns a ticket at once.
  std::uint64_t allreduce(const Message& message, Op op, Cuda::Stream stream);
  std::uint64_t broadcast(const Message& message, int root, Cuda::Stream stream);

  // What is enqueued on `stream` from now on comes after the ticket's result. Any number of streams may follow a ticket.
  void follow(std::uint64_t ticket, Cuda::Stream stream);

  // Returns once the ranks' part of the ticket is done, and throws what went wrong; its copies back may still be on the
  // way. A ticket is good for one await_result; those that nobody awaits are forgotten.
  void await_result(std::uint64_t ticket);

  // Returns once the ticket's result is there: for arrays of which nobody says what stream they are used on.
  void finish(std::uint64_t ticket);

  const GpuPath& path() const { return path_; }

 private:
  using Combine = std::function<void(Channel&, const Buffer&)>;
  struct Flight {
    Cuda::Event done;
    std::uint64_t job;  // the team's ticket; 0: none
  };

  // gpu_meeting.cc; all collective
  struct Answers {
    std::vector<std::string> all;  // every rank's
    std::string trouble;           // "rank 1: ..." of the first rank on which making its own threw
  };
  struct Shared {
    std::shared_ptr<Segment> memory;  // nullptr: there is none
    std::string why_not;
  };
  Answers ask(const std::string& what, const std::function<std::string()>& mine);
  Shared shared(const std::string& what, std::size_t bytes);
  std::vector<GpuPath> ways(const void* address, Cuda::Stream stream);
  void pin_memory();
  std::string open(const GpuPath& path);
  std::string join_nccl(bool all_ranks);
  std::string join_ipc(bool by_hosts);
  std::string try_out();  // gpu_trial.cc
  std::string try_meetings();
  Flat trial_numbers() const;
  std::string on_the_channel(const std::function<void()>& enqueue);
  std::size_t after_trial() const;
  // Looks until `is_so` on all ranks, and they know it; "": it is. Else who failed, or the time is up.
  std::string until_all(const std::string& what, double seconds, const std::function<bool()>& is_so);

  // gpu_blocks.cc: sums that are formed on the GPUs
  bool by_nccl_alone(Dtype dtype, Op op) const;
  bool on_the_gpus(const Message& message, Op op) const;
  std::uint64_t among_gpus(const Message& message, Cuda::Stream stream,
                           const std::function<void(Cuda::Stream)>& enqueue);
  std::uint64_t over_nodes(const Message& message, Op op, Cuda::Stream stream);
  void sum_on_gpus(Cuda::Stream stream, const std::vector<Buffer>& buffers, Op op);
  std::size_t sum_blocks(Cuda::Stream stream, const Flat& flat, std::size_t blocks_before, double divisor);
  double divisor(Op op) const;

  // gpu_mpi.cc: where MPI takes the GPUs' memory
  std::uint64_t by_a_thread(const Message& message, Cuda::Stream stream, std::function<void(Channel&)> work);
  std::uint64_t chunk_by_chunk(const Message& message, const std::shared_ptr<Plan>& plan, Combine combine, Cuda::Stream stream);

  std::uint64_t through_host(const Message& message, const std::vector<Buffer>& buffers, Combine combine,
                             Cuda::Stream stream);
  // What `plan` says: `enqueue` sends its chunks through the pipelines of so many threads, which combine them.
  std::uint64_t start(const Message& message, const std::shared_ptr<Plan>& plan, Combine combine, Cuda::Stream stream,
                      const std::function<void(std::size_t sharers, Cuda::Event done)>& enqueue);
  void send(const Plan& plan, std::size_t begin, std::size_t end, std::size_t sharers, Cuda::Event after);
  void check(const Message& message, Cuda::Stream stream);
  void remember(std::exception_ptr error);
  void throw_failure();
  Cuda::Event end_of(std::uint64_t ticket) const;
  Flight take_event();
  std::uint64_t keep(Flight flight);

  Team& team_;
  Arena& arena_;
  const Layout& layout_;
  const Settings& settings_;
  int rank_;
  std::unique_ptr<Gpu> gpu_;
  GpuPath path_{};
  char* pinned_ = nullptr;
  std::vector<std::unique_ptr<Pipeline>> pipelines_;  // one for each thread of the team
  Cuda::Stream gathering_ = nullptr;                  // where a reduction's ends come together
  Cuda::Event ready_ = nullptr;

  // Only where sums are formed on the GPUs.
  Cuda::Pointer scratch_ = 0;
  std::shared_ptr<Segment> flags_;
  std::unique_ptr<Neighbours> neighbours_;
  NcclTeam* nccl_ = nullptr;        // the neighbours, if NCCL connects them
  IpcByHosts* by_hosts_ = nullptr;  // the neighbours, if MPI takes the GPUs' memory
  std::unique_ptr<Copier> copier_;  // then
  std::unique_ptr<Blocks> blocks_;
  Cuda::Stream work_ = nullptr;
  Cuda::Event summed_ = nullptr, carried_[2] = {};

  std::mutex order_;  // what the ranks agree on is enqueued in the order in which they agree
  std::mutex guard_;  // of what follows, and of the pipelines' framework side
  std::uint64_t tickets_ = 0;
  std::map<std::uint64_t, Flight> flights_;
  std::vector<Cuda::Event> idle_;

  std::mutex failure_guard_;
  std::exception_ptr failure_;  // of a job; guarded by failure_guard_
};

}  // namespace dl
