#include "team.h"

#include <algorithm>
#include <utility>

#include "alone.h"
#include "error.h"
#include "flat.h"
#include "little.h"
#include "now.h"
#include "second_opinion.h"
#include "wait.h"

namespace dl {
namespace {

constexpr std::size_t worth_sharing = 1u << 20;  // bytes of a message from which several threads share it
constexpr std::size_t worth_a_meeting = 4096;    // bytes of a message from which the arena beats the stage
constexpr std::size_t grain = 64;                // elements: the threads' parts begin at whole cache lines

// Thread `i` of `threads` takes this part of n elements.
std::pair<std::size_t, std::size_t> part_of(std::size_t n, int threads, int i) {
  const auto parts = static_cast<std::size_t>(threads), at = static_cast<std::size_t>(i);
  const std::size_t each = ((n + parts - 1) / parts + grain - 1) / grain * grain;
  const std::size_t first = std::min(at * each, n);
  return {first, std::min(each, n - first)};
}

}  // namespace

std::size_t Team::footprint(const Layout& layout, const Settings& settings, int threads) {
  return static_cast<std::size_t>(threads) * Channel::footprint(layout, settings);
}

Team::Team(int id, int threads, int precision, const Layout& layout, const Transport& world, const Settings& settings,
           std::shared_ptr<Segment> segment, const Arena& arena)
    : id_(id), precision_(precision), size_(world.size()), arena_(arena) {
  const std::size_t each = Channel::footprint(layout, settings);
  for (int i = 0; i < threads; ++i)
    channels_.push_back(std::make_unique<Channel>(layout, world, settings, segment, static_cast<std::size_t>(i) * each,
                                            (id + 1) * most_threads + i));
  for (int i = 1; i < threads; ++i) crew_.push_back(std::make_unique<Queue>());
}

void Team::allreduce(const Message& message, Op op) {
  queue_.run([&] { guarded(message, [&] { reduce_checked(message, op); }); });
}

std::uint64_t Team::start(Message message, Op op) {
  return queue_.start([this, op, message = std::move(message)] { guarded(message, [&] { reduce_checked(message, op); }); });
}

std::uint64_t Team::start(Message message, int sharers, std::function<void(Channel&, int)> work,
                          std::function<void(std::exception_ptr)> otherwise) {
  return queue_.start([this, sharers, message = std::move(message), work = std::move(work), otherwise = std::move(otherwise)] {
    try {
      guarded(message, [&] {
        channels_.front()->agree(message, 0);
        together(message, sharers, work);
      });
    } catch (...) {
      otherwise(std::current_exception());
      throw;
    }
  });
}

// Who is interrupted ends what he waits for, and waits until it has let go of his arrays.
Span Team::wait(std::uint64_t ticket) {
  try {
    return queue_.wait(ticket, true);
  } catch (const Interrupted&) {
    tell("rank " + std::to_string(channels_.front()->everyone().rank()) + " was interrupted");
    try {
      queue_.wait(ticket);
    } catch (const CommError&) {  // as it should
    }
    throw;
  }
}

void Team::call(const Message& message, const std::function<void(Channel&)>& work) {
  queue_.run([&] {
    guarded(message, [&] {
      channels_.front()->agree(message, 0);
      work(*channels_.front());
    });
  });
}

void Team::fail(const Message& message, const CommError& why) {
  queue_.run([&] { guarded(message, [&] { throw CommError(why.what(), why.hint()); }); });
}

void Team::leave() { channels_.front()->leave(); }

// An error names the call that met it. After a disagreement all ranks stand at the same point and can go on; after any
// other error they do not, and the team is lost.
void Team::guarded(const Message& message, const std::function<void()>& work) {
  if (!failed_.empty()) throw CommError("team " + std::to_string(id_) + " failed before this call: " + failed_);
  ++calls_;
  try {
    const Now now(message, id_, calls_ - 1);
    work();
  } catch (const Disagreement& error) {
    throw Disagreement(where(message) + error.what(), error.hint());
  } catch (const std::exception& error) {
    const auto* ours = dynamic_cast<const CommError*>(&error);
    give_up(message, error.what());
    failed_ = where(message) + error.what();
    throw CommError("rank " + std::to_string(channels_.front()->everyone().rank()) + ", " + failed_, ours ? ours->hint() : "");
  }
}

std::string Team::where(const Message& message) const {
  return "team " + std::to_string(id_) + ", call " + std::to_string(calls_ - 1) + ", " + message.subject() + ": ";
}

void Team::give_up(const Message& message, const std::string& why) {
  tell("rank " + std::to_string(channels_.front()->everyone().rank()) + " gave up on " + where(message) + why);
}

void Team::tell(const std::string& text) {
  for (const auto& channel : channels_) {
    channel->raise(text);
    channel->abandon();
  }
}

void Team::reduce_parts(const std::vector<Part>& parts, Channel& channel, bool direct, const std::uint64_t* staged) {
  for (const Part& part : parts) {
    if (part.n == 0) continue;
    if (direct) {
      allreduce_direct(channel, part, arena_);
      continue;
    }
    std::uint64_t chunk = 0;
    if (staged != nullptr) {
      chunk = *staged;
      staged = nullptr;
    } else {
      chunk = stage_first(channel, part);
      channel.meet();
    }
    allreduce_staged(channel, part, chunk);
  }
}

void Team::reduce_checked(const Message& message, Op op) {
  Channel& channel = *channels_.front();
  const double tolerance = channel.settings().check;
  if (tolerance <= 0) return reduce(message, op);
  const Message brought = message.in_place();
  const SecondOpinion check(brought, op);
  reduce(brought, op);
  check.compare(channel.everyone(), tolerance);
}

void Team::reduce(const Message& message, Op op) {
  const std::vector<Flat> flats = by_type(message.buffers);
  std::size_t bytes = 0;
  bool in_place = true;
  for (const Flat& flat : flats) {
    bytes += flat.size() * width(flat.dtype());
    in_place = in_place && flat.in_place();
  }
  Channel& channel = *channels_.front();
  const bool alone = channel.layout().alone();
  const int sharers = bytes >= worth_sharing && !alone ? threads() : 1;
  std::vector<std::vector<Part>> parts(static_cast<std::size_t>(sharers));
  for (const Flat& flat : flats)
    for (int i = 0; i < sharers; ++i) {
      const auto [first, n] = part_of(flat.size(), sharers, i);
      if (n > 0)
        parts[static_cast<std::size_t>(i)].push_back(
            {flat, first, n, reducer(flat.dtype(), op, precision_), op == Op::mean ? static_cast<double>(size_) : 1.0});
    }
  if (alone) return allreduce_alone(channel, message, parts.front());
  if (channel.layout().nodes > 1 && sharers == 1 && parts.front().size() == 1)
    if (const Part& part = parts.front().front(); carried(channel, part) > 0) return agree_carrying(channel, message, part, part.n);
  // Little data takes one meeting through the stage, two in the arena.
  const std::uint64_t place = in_place && bytes >= worth_a_meeting ? arena_.place(message.buffers) : 0;
  const bool anything = !parts.front().empty();
  std::uint64_t chunk = 0;
  if (place == 0 && anything) chunk = stage_first(channel, parts.front().front());
  const Channel::Agreement agreed = channel.agree(message, place);
  if (!anything) return;
  if (agreed.mixed) {
    if (place != 0) chunk = stage_first(channel, parts.front().front());
    channel.meet();
  }
  together(message, sharers, [&](Channel& one, int i) {
    reduce_parts(parts[static_cast<std::size_t>(i)], one, agreed.direct, i > 0 || agreed.direct ? nullptr : &chunk);
  });
}

// This thread is the first, the crew the others.
void Team::together(const Message& message, int sharers, const std::function<void(Channel&, int)>& work) {
  std::vector<std::uint64_t> tickets;
  for (int i = 1; i < sharers; ++i) {
    const auto at = static_cast<std::size_t>(i);
    tickets.push_back(crew_[at - 1]->start([this, i, at, &work] { work(*channels_[at], i); }));
  }
  std::exception_ptr error;
  try {
    work(*channels_.front(), 0);
  } catch (const std::exception& thrown) {
    error = std::current_exception();
    give_up(message, thrown.what());
  }
  for (std::size_t i = 0; i < tickets.size(); ++i) {
    try {
      crew_[i]->wait(tickets[i]);
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace dl
