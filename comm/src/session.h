// All that a rank has: who it is, its teams, its arena. A process has one (the_session), tests have one a thread.
//
// Errors are CommError. Calls on one team are done in order; the calls that name no team use team 0.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "arena.h"
#include "layout.h"
#include "mpi.h"
#include "settings.h"
#include "team.h"
#include "transport.h"

namespace dl {

class GpuTeam;

class Session {
 public:
  // Collective over `world`.
  Session(std::unique_ptr<Transport> world, Settings settings);
  ~Session();

  int rank() const { return world_->rank(); }
  int size() const { return world_->size(); }
  int local_rank() const { return layout_.local_rank; }
  int local_size() const { return layout_.local_size(); }
  int node() const { return layout_.node; }
  int nodes() const { return layout_.nodes; }
  const Settings& settings() const { return settings_; }
  const std::string& without_shared_memory() const { return why_not_; }  // why; empty: it has it

  // Makes the team with `threads` threads (fewer where the node has fewer cores) and the precision level. Collective.
  // Teams that were not made are made at first use, with the default settings; one that was only used so far is made
  // anew.
  void create_team(int id, int threads, int precision);

  void allreduce(const Message& message, Op op, int team);
  std::uint64_t start(Message message, Op op, int team);
  Span wait(std::uint64_t ticket);  // when the reduction ran
  void broadcast(const Message& message, int root);

  // Arrays on this rank's GPU (device/gpu_team.h). They return a ticket at once: on the device, what `stream` holds now
  // comes before, and what a stream gets after it follows the ticket comes later. `stream` is a CUstream.
  std::uint64_t allreduce_on_gpu(const Message& message, Op op, int team, std::uintptr_t stream);
  std::uint64_t broadcast_on_gpu(const Message& message, int root, int team, std::uintptr_t stream);
  void follow_on_gpu(std::uint64_t ticket, std::uintptr_t stream);
  void await_on_gpu(std::uint64_t ticket);  // waits for the ranks' part of it, and throws what went wrong
  void finish_on_gpu(std::uint64_t ticket);  // waits until its result is there
  std::string gpu_path(int team);            // "NCCL 2.21.5", "the host, since ..."; "": nothing on a GPU so far

  std::string wire(int team);  // what timing has found about the ways between nodes (wire_choice.h); "": nothing

  std::string broadcast_bytes(const std::string& data, int root);
  std::vector<std::string> allgather_bytes(const std::string& data);
  void barrier();

  // `bytes` bytes of the node's shared memory, zeroed, for as long as the process lives. Collective.
  char* arena(std::size_t bytes);

  // Tells the others that this rank is going. blocking: waits until all are. Idempotent; a later call on the session is
  // refused.
  void finalize(bool blocking);
  bool finalized() const { return finalized_; }

  // Tells the ranks of this node that this one has failed.
  void raise(const std::string& text);

 private:
  void check_usable() const;
  void check_root(int root) const;
  Team& team(int id);
  GpuTeam* gpu_team(int id, const Message& message, std::uintptr_t stream);
  GpuTeam* gpu_team_of(std::uint64_t ticket);
  void make_team(int id, int threads, int precision);
  void find_shared_memory();

  static constexpr std::uint64_t team_bits = 10;  // the last ones of a ticket

  Settings settings_;
  std::unique_ptr<Transport> world_;
  Layout layout_;
  int threads_at_most_ = 1;
  std::string why_not_;
  Arena arena_;
  pid_t pid_;
  std::atomic<bool> finalized_{false};
  std::mutex guard_;                           // of teams_ and what being_made_ tells
  std::map<int, std::unique_ptr<GpuTeam>> gpu_teams_;  // used by the jobs of teams_, which end before it
  std::map<int, std::unique_ptr<Team>> teams_;
  std::set<int> being_made_;
  std::set<int> made_by_use_;
  std::condition_variable made_;
};

}  // namespace dl
