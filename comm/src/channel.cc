#include "channel.h"

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

std::size_t up(std::size_t bytes) { return (bytes + page - 1) / page * page; }

// Bytes of a stage. Within a node a chunk stays in the caches. Between nodes the ranks are busy with the wire, and meet late: few
// meetings count more. It takes memory, so many ranks get less.
std::size_t stage_for(const Layout& layout, const Settings& settings) {
  constexpr std::size_t cached = 256, few_meetings = 2048, many_ranks = 16;
  const auto n = static_cast<std::size_t>(layout.local_size());
  const std::size_t kb = layout.nodes == 1 || n == 1 ? cached : n <= many_ranks ? few_meetings : few_meetings / 2;
  return up((settings.stage_kb > 0 ? settings.stage_kb : kb) * 1024);
}

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

std::size_t Channel::footprint(const Layout& layout, const Settings& settings) {
  const auto n = static_cast<std::size_t>(layout.local_size());
  return up(sizeof(Alarm) + n * sizeof(Mailbox)) + 3 * n * stage_for(layout, settings);
}

Channel::Channel(const Layout& layout, const Transport& world, const Settings& settings, std::shared_ptr<Segment> segment,
           std::size_t offset, int number)
    : layout_(layout),
      settings_(settings),
      number_(number),
      segment_(std::move(segment)),
      everyone_(world.on_channel(number)),
      alarm_(reinterpret_cast<Alarm*>(segment_->base() + offset)),
      mailboxes_(reinterpret_cast<Mailbox*>(segment_->base() + offset + sizeof(Alarm))),
      stage_bytes_(stage_for(layout, settings)),
      backoff_(backoff_for(layout.local_size(), layout.nodes)),
      wire_choice_(WireChoice::ways(settings, layout.nodes)) {
  const auto n = static_cast<std::size_t>(layout.local_size());
  stages_ = segment_->base() + offset + up(sizeof(Alarm) + n * sizeof(Mailbox));
  if (layout.owns()) peers_ = world.subset(layout.peers, number);
  if (layout.local_rank == 0) delegates_ = world.subset(layout.delegates, number);
  if (layout.alone() && !layout.apart)
    for (Transport* one : {everyone_.get(), peers_.get(), delegates_.get()}) one->has_core();
  mailbox(layout.local_rank).pid.store(getpid());
}

char* Channel::stage(int local, std::uint64_t chunk) const {
  return stages_ + (static_cast<std::size_t>(local) * 3 + static_cast<std::size_t>(chunk % 3)) * stage_bytes_;
}

std::uint32_t Channel::arrive() {
  advance(mailbox(layout_.local_rank).tick, ++now_);
  return now_;
}

void Channel::wait(std::uint32_t number) {
  waiting_since_ = {};
  for (int local = 0; local < layout_.local_size(); ++local)
    if (local != layout_.local_rank) {
      const auto watched = [this, local] { watch(local); };
      if (moving_ && peers_->nudge()) await_busily(mailbox(local).tick, number, [this] { peers_->nudge(); }, watched);
      else await(mailbox(local).tick, number, backoff_, watched);
    }
}

// Called now and then while this rank sleeps for another.
void Channel::watch(int local) {
  check_interruption();
  const std::string who = "rank " + std::to_string(layout_.locals[static_cast<std::size_t>(local)]);
  if (alarm_->raised.load(std::memory_order_acquire) == 2) throw CommError(std::string(alarm_->text));
  const int pid = mailbox(local).pid.load();
  if (mailbox(local).left.load() != 0)
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

void Channel::raise(const std::string& text) {
  std::uint32_t none = 0;
  if (!alarm_->raised.compare_exchange_strong(none, 1)) return;
  std::strncpy(alarm_->text, text.c_str(), sizeof alarm_->text - 1);
  alarm_->raised.store(2, std::memory_order_release);
}

void Channel::abandon() {
  for (Transport* one : {everyone_.get(), peers_.get(), delegates_.get()})
    if (one != nullptr) one->abandon();
}

void Channel::leave() { mailbox(layout_.local_rank).left.store(1); }

}  // namespace dl
