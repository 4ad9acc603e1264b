// A session's reductions of arrays on GPUs.
#include "session.h"

#include <algorithm>

#include "device/gpu_team.h"
#include "error.h"

namespace dl {

// The team's GPU, which all ranks meet about at the team's first arrays on one; nullptr where there is nothing to do.
GpuTeam* Session::gpu_team(int id, const Message& message, std::uintptr_t stream) {
  check_usable();
  const auto first = std::find_if(message.buffers.begin(), message.buffers.end(), [](const Buffer& one) { return one.count > 0; });
  if (size() == 1 || first == message.buffers.end()) return nullptr;
  Team& used = team(id);
  {
    const std::lock_guard<std::mutex> lock(guard_);
    const auto found = gpu_teams_.find(id);
    if (found != gpu_teams_.end()) return found->second.get();
  }
  auto made = std::make_unique<GpuTeam>(used, arena_, layout_, settings_, rank(), first->data, reinterpret_cast<Cuda::Stream>(stream));
  const std::lock_guard<std::mutex> lock(guard_);
  return (gpu_teams_[id] = std::move(made)).get();
}

GpuTeam* Session::gpu_team_of(std::uint64_t ticket) {
  check_usable();
  if (ticket == 0) return nullptr;
  const std::lock_guard<std::mutex> lock(guard_);
  const auto found = gpu_teams_.find(static_cast<int>(ticket & ((1u << team_bits) - 1)));
  if (found == gpu_teams_.end()) throw CommError("no reduction on the GPU has the ticket " + std::to_string(ticket));
  return found->second.get();
}

std::uint64_t Session::allreduce_on_gpu(const Message& message, Op op, int id, std::uintptr_t stream) {
  GpuTeam* const gpu = gpu_team(id, message, stream);
  if (gpu == nullptr) return allreduce(message, op, id), 0;
  return gpu->allreduce(message, op, reinterpret_cast<Cuda::Stream>(stream)) << team_bits | static_cast<std::uint64_t>(id);
}

std::uint64_t Session::broadcast_on_gpu(const Message& message, int root, int id, std::uintptr_t stream) {
  check_root(root);
  GpuTeam* const gpu = gpu_team(id, message, stream);
  if (gpu == nullptr) return broadcast(message, root), 0;
  return gpu->broadcast(message, root, reinterpret_cast<Cuda::Stream>(stream)) << team_bits | static_cast<std::uint64_t>(id);
}

void Session::follow_on_gpu(std::uint64_t ticket, std::uintptr_t stream) {
  if (GpuTeam* const gpu = gpu_team_of(ticket)) gpu->follow(ticket >> team_bits, reinterpret_cast<Cuda::Stream>(stream));
}

void Session::await_on_gpu(std::uint64_t ticket) {
  if (GpuTeam* const gpu = gpu_team_of(ticket)) gpu->await_result(ticket >> team_bits);
}

void Session::finish_on_gpu(std::uint64_t ticket) {
  if (GpuTeam* const gpu = gpu_team_of(ticket)) gpu->finish(ticket >> team_bits);
}

std::string Session::gpu_path(int id) {
  const std::lock_guard<std::mutex> lock(guard_);
  const auto found = gpu_teams_.find(id);
  return found == gpu_teams_.end() ? "" : found->second->path().why + found->second->path().hint;
}

}  // namespace dl
