#include "session.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "broadcast.h"
#include "device/gpu_team.h"
#include "error.h"

namespace dl {
namespace {

constexpr int setup_channel = 1;

int cores_of_this_process() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// Ranks with other settings would send other messages. Throws on every rank, naming the first that differs.
void check_settings(Transport& world, const Settings& settings) {
  std::string mine;
  for (const auto& entry : shared_settings(settings)) mine += entry.second + "\n";
  const std::vector<std::string> all = allgather(world, mine);
  if (std::count(all.begin(), all.end(), mine) == world.size()) return;
  for (const auto& [name, value] : shared_settings(settings)) {
    const std::vector<std::string> values = allgather(world, value);
    for (std::size_t rank = 1; rank < values.size(); ++rank)
      if (values[rank] != values[0])
        throw CommError("the ranks do not agree: " + name + " is '" + values[0] + "' on rank 0 but '" + values[rank] +
                            "' on rank " + std::to_string(rank),
                        "every rank has to be given the same setting");
  }
}

}  // namespace

Session::Session(std::unique_ptr<Transport> world, Settings settings)
    : settings_(std::move(settings)), world_(std::move(world)), pid_(getpid()) {
  check_settings(*world_, settings_);
  find_shared_memory();
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  int usable = std::min(cores_of_this_process(), static_cast<int>(online) / layout_.local_size());
  std::vector<int> all(static_cast<std::size_t>(size()));
  allgather(*world_, &usable, sizeof usable, all.data());
  threads_at_most_ = std::max(1, *std::min_element(all.begin(), all.end()));
}

// Ranks of a node that cannot share memory are nodes of their own, and the wire serves all.
void Session::find_shared_memory() {
  std::string host = host_identity(settings_);
  layout_ = find_layout(*world_, host, settings_.wire_ranks);
  std::shared_ptr<Segment> probe;
  {
    const auto node = world_->subset(layout_.locals, setup_channel);
    probe = share(*node, Team::footprint(layout_, settings_, settings_.default_nthreads), settings_.shared_memory, why_not_);
  }
  char mine = probe ? 1 : 0;
  std::vector<char> all(static_cast<std::size_t>(size()));
  allgather(*world_, &mine, 1, all.data());
  if (std::count(all.begin(), all.end(), '\1') == size()) {
    why_not_.clear();
    return;
  }
  const std::vector<std::string> reasons = allgather(*world_, why_not_);
  const auto first = std::find_if(reasons.begin(), reasons.end(), [](const std::string& why) { return !why.empty(); });
  if (first != reasons.end()) why_not_ = *first;
  if (!probe) host += " rank " + std::to_string(rank());
  layout_ = find_layout(*world_, host, settings_.wire_ranks);
  layout_.apart = true;
}

Session::~Session() = default;

void Session::check_usable() const {
  if (getpid() != pid_)
    throw CommError("process " + std::to_string(getpid()) + " was forked from rank " + std::to_string(rank()) +
                        " and is no rank itself",
                    "call dl_comm in the process of the rank; a data loader's workers only load");
  if (finalized_) throw CommError("dl_comm has been finalized", "finalize is the last call of a rank");
}

void Session::allreduce(const Message& message, Op op, int id) {
  check_usable();
  if (size() > 1) team(id).allreduce(message, op);
  else message.in_place();
}

std::uint64_t Session::start(Message message, Op op, int id) {
  check_usable();
  if (size() == 1) return 0;
  Team& one = team(id);
  return one.start(std::move(message), op) << team_bits | static_cast<std::uint64_t>(id);
}

Span Session::wait(std::uint64_t ticket) {
  check_usable();
  if (ticket == 0 && size() == 1) return {};
  return team(static_cast<int>(ticket & ((1u << team_bits) - 1))).wait(ticket >> team_bits);
}

void Session::check_root(int root) const {
  if (root < 0 || root >= size())
    throw CommError("there is no rank " + std::to_string(root) + " to broadcast from",
                    "ranks are numbered from 0 to " + std::to_string(size() - 1));
}

void Session::broadcast(const Message& message, int root) {
  check_usable();
  check_root(root);
  if (size() > 1) team(0).call(message, [&](Channel& channel) { dl::broadcast(channel, message, root); });
}

std::string Session::wire(int id) {
  check_usable();
  return size() > 1 ? team(id).wire() : "";
}

std::string Session::broadcast_bytes(const std::string& data, int root) {
  check_usable();
  if (size() == 1) return data;
  std::string result;
  const Message message{"broadcast of bytes from rank " + std::to_string(root), {}, {}};
  team(0).call(message, [&](Channel& channel) { result = dl::broadcast(channel.everyone(), data, root); });
  return result;
}

std::vector<std::string> Session::allgather_bytes(const std::string& data) {
  check_usable();
  if (size() == 1) return {data};
  std::vector<std::string> all;
  team(0).call({"allgather of bytes", {}, {}}, [&](Channel& channel) { all = allgather(channel.everyone(), data); });
  return all;
}

void Session::barrier() {
  check_usable();
  if (size() > 1) team(0).call({"barrier", {}, {}}, [](Channel&) {});
}

char* Session::arena(std::size_t bytes) {
  check_usable();
  constexpr std::size_t huge_page = 2u << 20;
  const std::size_t grain = bytes >= huge_page ? huge_page : 4096;
  const std::size_t stride = std::max(grain, (bytes + grain - 1) / grain * grain);
  std::shared_ptr<Segment> segment;
  std::string why;
  auto make = [&](Transport& node) {
    segment = share(node, stride * static_cast<std::size_t>(local_size()), settings_.shared_memory, why);
  };
  if (size() == 1) {
    make(*world_);
  } else {
    team(0).call({"arena of " + std::to_string(bytes) + " bytes", {}, {}},
                 [&](Channel& channel) { make(*channel.among(layout_.locals)); });
  }
  if (!segment) throw CommError("no shared memory for an arena of " + std::to_string(bytes) + " bytes: " + why);
  return arena_.add(std::move(segment), local_rank(), bytes, stride);
}

void Session::finalize(bool blocking) {
  if (finalized_ || getpid() != pid_) return;
  if (blocking && size() > 1) {
    std::vector<Team*> all;
    {
      const std::lock_guard<std::mutex> lock(guard_);
      for (auto& entry : teams_) all.push_back(entry.second.get());
    }
    for (Team* one : all) one->drain();
    team(0).call({"finalize", {}, {}}, [](Channel&) {});
  }
  finalized_ = true;
  const std::lock_guard<std::mutex> lock(guard_);
  for (auto& entry : teams_) entry.second->leave();
}

void Session::raise(const std::string& text) {
  if (getpid() != pid_) return;
  const std::lock_guard<std::mutex> lock(guard_);
  for (auto& entry : teams_) entry.second->raise(text);
}

}  // namespace dl
