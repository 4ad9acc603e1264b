// Reductions of a GpuTeam between whose nodes MPI takes the GPUs' memory (ipc_by_hosts.h): work of one thread of the team,
// which waits for its GPU, while the caller goes on; follow() waits for that thread.
#include "device/gpu_team.h"

namespace dl {

// The flight's event is recorded twice: what the work begins after, and its end.
std::uint64_t GpuTeam::by_a_thread(const Message& message, Cuda::Stream stream, std::function<void(Channel&)> work) {
  const std::lock_guard<std::mutex> lock(guard_);
  const Current here(*gpu_);
  Flight flight = take_event();
  gpu_->cuda.event_record(flight.done, stream);
  auto job = [this, event = flight.done, work = std::move(work)](Channel& channel, int) {
    const Current its_own(*gpu_);
    by_hosts_->meet_on(channel);
    gpu_->cuda.stream_wait_event(work_, event, 0);
    work(channel);
    gpu_->cuda.event_record(event, work_);
  };
  flight.job = team_.start(message, 1, std::move(job), [this](std::exception_ptr error) { remember(std::move(error)); });
  return keep(flight);
}

std::uint64_t GpuTeam::chunk_by_chunk(const Message& message, const std::shared_ptr<Plan>& plan, Combine combine,
                                      Cuda::Stream stream) {
  return by_a_thread(message, stream, [this, plan, combine = std::move(combine)](Channel& channel) {
    for (const Plan::Chunk& chunk : plan->chunks) {
      copier_->gather(work_, chunk.flat, chunk.first, chunk.n, pinned_);
      by_hosts_->finish(work_);
      combine(channel, {pinned_, chunk.n, chunk.flat.dtype()});
      copier_->scatter(work_, chunk.flat, chunk.first, chunk.n, pinned_);
    }
  });
}

}  // namespace dl
