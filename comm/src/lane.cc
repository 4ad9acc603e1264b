#include "lane.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "error.h"

namespace dl {
namespace {

constexpr std::size_t page = 4096;
constexpr std::uint64_t agreed = 1, agreed_direct = 2, agreed_mixed = 4;  // bits of a verdict

std::size_t up(std::size_t bytes) { return (bytes + page - 1) / page * page; }

// A killed process stays in the table as a zombie until its launcher collects it.
bool has_died(int pid) {
  if (pid == 0) return false;
  if (kill(pid, 0) != 0 && errno == ESRCH) return true;
  char state = 'R';
  if (std::FILE* stat = std::fopen(("/proc/" + std::to_string(pid) + "/stat").c_str(), "r")) {
    if (std::fscanf(stat, "%*d (%*[^)]) %c", &state) != 1) state = 'R';
    std::fclose(stat);
  }
  return state == 'Z' || state == 'X';
}

}  // namespace

std::size_t Lane::footprint(const Layout& layout, const Settings& settings) {
  const auto n = static_cast<std::size_t>(layout.local_size());
  return up(sizeof(Alarm) + n * sizeof(Desk)) + 3 * n * up(settings.stage_kb * 1024);
}

Lane::Lane(const Layout& layout, const Transport& world, const Settings& settings, std::shared_ptr<Segment> segment,
           std::size_t offset, int number)
    : layout_(layout),
      settings_(settings),
      number_(number),
      segment_(std::move(segment)),
      everyone_(world.on_lane(number)),
      alarm_(reinterpret_cast<Alarm*>(segment_->base() + offset)),
      desks_(reinterpret_cast<Desk*>(segment_->base() + offset + sizeof(Alarm))),
      stage_bytes_(up(settings.stage_kb * 1024)),
      patience_(patience_for(layout.local_size())) {
  const auto n = static_cast<std::size_t>(layout.local_size());
  stages_ = segment_->base() + offset + up(sizeof(Alarm) + n * sizeof(Desk));
  if (layout.owns()) peers_ = world.subset(layout.peers, number);
  if (layout.local_rank == 0) delegates_ = world.subset(layout.delegates, number);
  desk(layout.local_rank).pid.store(getpid());
}

char* Lane::stage(int local, std::uint64_t chunk) const {
  return stages_ + (static_cast<std::size_t>(local) * 3 + static_cast<std::size_t>(chunk % 3)) * stage_bytes_;
}

std::uint32_t Lane::arrive() {
  advance(desk(layout_.local_rank).tick, ++now_);
  return now_;
}

void Lane::wait(std::uint32_t number) {
  waiting_since_ = {};
  for (int local = 0; local < layout_.local_size(); ++local)
    if (local != layout_.local_rank) await(desk(local).tick, number, patience_, [this, local] { watch(local); });
}

// Called now and then while this rank sleeps for another.
void Lane::watch(int local) {
  check_interruption();
  const std::string who = "rank " + std::to_string(layout_.locals[static_cast<std::size_t>(local)]);
  if (alarm_->raised.load(std::memory_order_acquire) == 2) throw CommError(std::string(alarm_->text));
  const int pid = desk(local).pid.load();
  if (desk(local).left.load() != 0)
    throw CommError(who + " has left: it called finalize or ended", "every rank has to make the same calls");
  if (pid != getpid() && has_died(pid))
    throw CommError(who + " (process " + std::to_string(pid) + ") has died", "its own output says why");
  const auto now = std::chrono::steady_clock::now();
  if (waiting_since_ == std::chrono::steady_clock::time_point{}) waiting_since_ = now;
  // With several nodes whoever waits for the wire is to speak first: it knows which rank is silent.
  const double limit = settings_.timeout_s * (layout_.nodes > 1 ? 1.1 : 1.0);
  if (std::chrono::duration<double>(now - waiting_since_).count() > limit) {
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%g", settings_.timeout_s);
    throw CommError(who + " has not come within " + seconds + " s",
                    "it hangs, makes other calls, or is slower than DL_COMM_TIMEOUT_S allows");
  }
}

Lane::Agreement Lane::agree(const Message& message, std::uint64_t place) {
  const std::size_t slot = calls_++ & 1;
  const std::uint64_t mine = message.fingerprint();
  Desk& own = desk(layout_.local_rank);
  own.fingerprint[slot].store(mine, std::memory_order_relaxed);
  own.place[slot].store(place, std::memory_order_relaxed);
  meet();
  std::uint64_t verdict = agreed | (place != 0 ? agreed_direct : 0);
  for (int local = 0; local < layout_.local_size(); ++local) {
    if (desk(local).fingerprint[slot].load(std::memory_order_relaxed) != mine) verdict &= ~agreed;
    if (desk(local).place[slot].load(std::memory_order_relaxed) != place) verdict = (verdict & ~agreed_direct) | agreed_mixed;
  }
  if (layout_.nodes > 1) {
    if (layout_.local_rank == 0) {
      struct { std::uint64_t fingerprint, place, verdict; } said{mine, place, verdict};
      std::vector<decltype(said)> all(static_cast<std::size_t>(layout_.nodes));
      allgather(*delegates_, &said, sizeof said, all.data());
      for (const auto& other : all) {
        if (other.fingerprint != mine) verdict &= ~agreed;
        verdict &= other.verdict | agreed_mixed;
        if (other.place != place || (other.verdict & agreed_mixed)) verdict = (verdict & ~agreed_direct) | agreed_mixed;
      }
      own.verdict[slot].store(verdict, std::memory_order_relaxed);
    }
    meet();
    verdict = desk(0).verdict[slot].load(std::memory_order_relaxed);
  }
  if (!(verdict & agreed)) {
    const std::string difference = first_difference(allgather(*everyone_, joined(message.description())));
    chunk_ = 0;  // who meant to reduce has staged a chunk, others have not; nobody reads any now
    throw Disagreement("the ranks do not agree: " + difference,
                    "every rank has to pass the same arrays, in the same order, with the same shapes and types");
  }
  return {(verdict & agreed_direct) != 0, (verdict & agreed_mixed) != 0};
}

void Lane::raise(const std::string& text) {
  std::uint32_t none = 0;
  if (!alarm_->raised.compare_exchange_strong(none, 1)) return;
  std::strncpy(alarm_->text, text.c_str(), sizeof alarm_->text - 1);
  alarm_->raised.store(2, std::memory_order_release);
}

void Lane::abandon() {
  for (Transport* one : {everyone_.get(), peers_.get(), delegates_.get()})
    if (one != nullptr) one->abandon();
}

void Lane::leave() { desk(layout_.local_rank).left.store(1); }

}  // namespace dl
