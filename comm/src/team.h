// A team: threads that reduce together, apart from other teams, so that several models can be averaged at once.
//
// Each thread has a channel of its own and a fixed part of the data, by length and number of threads. Calls on a team are
// done in the order in which they are made, which has to be the same on all ranks. A team is made by all ranks; any
// thread may use it.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "allreduce.h"
#include "arena.h"
#include "channel.h"
#include "error.h"
#include "message.h"
#include "queue.h"

namespace dl {

inline constexpr int most_teams = 400;
inline constexpr int most_threads = 64;

class Team {
 public:
  // Bytes of shared memory for a team of `threads`.
  static std::size_t footprint(const Layout& layout, const Settings& settings, int threads);

  Team(int id, int threads, int precision, const Layout& layout, const Transport& world, const Settings& settings,
       std::shared_ptr<Segment> segment, const Arena& arena);

  // What was found by timing about the ways between the nodes, as a table that DL_COMM_WIRE takes; "": nothing.
  std::string wire() const { return shown(channels_.front()->wire_choice().table()); }
  int precision() const { return precision_; }
  int threads() const { return static_cast<int>(channels_.size()); }

  // Every rank's arrays become the combination over all ranks, in place.
  void allreduce(const Message& message, Op op);

  // The same in the background. The caller keeps the arrays alive and unchanged until wait(ticket) returns.
  std::uint64_t start(Message message, Op op);
  Span wait(std::uint64_t ticket);

  // In the background: `work` on the first `sharers` threads at once, each with its channel and its number, once all ranks
  // agree on the message. `otherwise` gets the error if they do not, or if any of the threads fails.
  std::uint64_t start(Message message, int sharers, std::function<void(Channel&, int)> work,
                      std::function<void(std::exception_ptr)> otherwise);

  // Any other collective call: `work` runs on the first channel, in order, once all ranks agree on the message.
  void call(const Message& message, const std::function<void(Channel&)>& work);

  // This rank cannot go on with what the ranks have agreed on: the team is lost, and they are told. Throws CommError.
  void fail(const Message& message, const CommError& why);

  // Tells the ranks of this node that this rank has failed / has left.
  void raise(const std::string& text) { channels_.front()->raise(text); }
  void leave();
  void drain() { queue_.drain(); }

 private:
  void reduce(const Message& message, Op op);
  void reduce_checked(const Message& message, Op op);  // as the settings say
  void reduce_parts(const std::vector<Part>& parts, Channel& channel, bool direct, const std::uint64_t* staged);
  void together(const Message& message, int sharers, const std::function<void(Channel&, int)>& work);
  void guarded(const Message& message, const std::function<void()>& work);
  // "team 0, call 3, weight (64, 3) and 7 more: " of the call that is running.
  std::string where(const Message& message) const;
  // Tells the ranks of this node how this one failed, and ends what its other threads are doing.
  void give_up(const Message& message, const std::string& why);
  void tell(const std::string& text);

  int id_;
  int precision_;
  int size_;
  const Arena& arena_;
  std::vector<std::unique_ptr<Channel>> channels_;
  std::vector<std::unique_ptr<Queue>> crew_;  // of channels 1 and up
  std::uint64_t calls_ = 0;                   // only the running job touches it
  std::string failed_;                        // how this team failed; likewise
  Queue queue_;                               // last: its thread ends before what it uses
};

}  // namespace dl
