// A session's teams: made by name, or at their first use.
#include <utility>

#include "device/gpu_team.h"
#include "error.h"
#include "session.h"

namespace dl {
namespace {

// Ranks whose teams differ would cut the data differently, or round it differently. Throws on every rank.
void check_team(Transport& world, int threads, int precision) {
  const std::pair<int, int> mine{threads, precision};
  std::vector<std::pair<int, int>> all(static_cast<std::size_t>(world.size()));
  allgather(world, &mine, sizeof mine, all.data());
  auto said = [](const std::pair<int, int>& team) {
    return std::to_string(team.first) + " threads at precision level " + std::to_string(team.second);
  };
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      throw CommError("the ranks do not agree: " + said(all[0]) + " on rank 0 but " + said(all[rank]) + " on rank " +
                          std::to_string(rank),
                      "every rank has to make the same teams");
}

}  // namespace

void Session::create_team(int id, int threads, int precision) {
  check_usable();
  if (id < 0 || id >= most_teams)
    throw CommError("there is no team " + std::to_string(id), "teams are numbered from 0 to " + std::to_string(most_teams - 1));
  if (threads < 1 || threads > most_threads - 1)
    throw CommError("a team cannot have " + std::to_string(threads) + " threads",
                    "it takes from 1 to " + std::to_string(most_threads - 1));
  if (precision != 0 && precision != 1)
    throw CommError("there is no precision level " + std::to_string(precision), "0 sums floats as they are, 1 in double");
  std::unique_ptr<GpuTeam> gpu;
  std::unique_ptr<Team> used;
  {
    const std::lock_guard<std::mutex> lock(guard_);
    const bool exists = teams_.count(id) != 0 && made_by_use_.erase(id) == 0;
    if (exists || !being_made_.insert(id).second)
      throw CommError("team " + std::to_string(id) + " exists already", "a team is made once");
    if (teams_.count(id) != 0) {
      gpu = std::move(gpu_teams_[id]);
      gpu_teams_.erase(id);
      used = std::move(teams_[id]);
      teams_.erase(id);
    }
  }
  if (used) used->drain();
  make_team(id, threads, precision);
}

// Without the guard while ranks talk: two threads may make two teams at once, on another rank in the other order.
void Session::make_team(int id, int threads, int precision) {
  std::unique_ptr<Team> one;
  std::exception_ptr error;
  try {
    const int useful = std::min(threads, threads_at_most_);
    check_team(*world_->on_channel((id + 1) * most_threads + most_threads - 1), threads, precision);
    const auto node = world_->subset(layout_.locals, (id + 1) * most_threads + most_threads - 1);
    std::string why;
    auto segment = share(*node, Team::footprint(layout_, settings_, useful), settings_.shared_memory, why);
    if (!segment) throw CommError("no shared memory for team " + std::to_string(id) + ": " + why);
    one = std::make_unique<Team>(id, useful, precision, layout_, *world_, settings_, std::move(segment), arena_);
  } catch (const CommError& why) {
    error = std::make_exception_ptr(
        CommError("rank " + std::to_string(rank()) + " cannot make team " + std::to_string(id) + ": " + why.what(), why.hint()));
  } catch (...) {
    error = std::current_exception();
  }
  const std::lock_guard<std::mutex> lock(guard_);
  if (one) teams_[id] = std::move(one);
  being_made_.erase(id);
  made_.notify_all();
  if (error) std::rethrow_exception(error);
}

Team& Session::team(int id) {
  check_usable();
  {
    std::unique_lock<std::mutex> lock(guard_);
    made_.wait(lock, [&] { return being_made_.count(id) == 0; });
    const auto found = teams_.find(id);
    if (found != teams_.end()) return *found->second;
  }
  create_team(id, settings_.default_nthreads, settings_.default_prec_level);
  const std::lock_guard<std::mutex> lock(guard_);
  made_by_use_.insert(id);
  return *teams_.at(id);
}

}  // namespace dl
