// Waiting for a counter in shared memory: a short spin, then leaving the core to others, then sleeping on a futex, so
// that more ranks than cores stay usable.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "error.h"

namespace dl {

// A counter that one rank advances and the others of its node wait for. Lives in shared memory, zeroed at first.
struct Counter {
  std::atomic<std::uint32_t> value;
  std::atomic<std::uint32_t> sleepers;
};

// How long a rank spins before it gives the core away, and then sleeps.
struct Backoff {
  int spins;   // looks at the counter without leaving the core
  int yields;  // looks with sched_yield between
};

// With a core for each rank spinning is cheapest; without, a spin only keeps the awaited rank from running. Among several
// nodes whoever is waited for waits for the wire, which takes longer than a spin, and needs the core for that.
Backoff backoff_for(int ranks_on_node, int nodes);

// Sets the counter and wakes whoever sleeps on it. Everything written before is visible to whoever sees the value.
void advance(Counter& counter, std::uint32_t to);

// Returns once the counter has reached `target` (modulo 2^32). While asleep, calls `watch` about every 20 ms, which may
// throw to give up; a CommError that comes when the counter has just been reached is about what follows, and dropped.
void await(Counter& counter, std::uint32_t target, const Backoff& backoff, const std::function<void()>& watch);

// The same for who has something else to do: never asleep for long, it calls `meanwhile` between its looks.
void await_busily(Counter& counter, std::uint32_t target, const std::function<void()>& meanwhile,
                  const std::function<void()>& watch);

// While one lives, the thread that made it gives up waiting once asked() is true, which it asks about every 20 ms.
class Interruptible {
 public:
  explicit Interruptible(bool (*asked)());
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;
};

// This thread was told to give up.
class Interrupted : public CommError {
 public:
  Interrupted() : CommError("it was interrupted by a signal") {}
};

// Asks. Throws Interrupted if this thread is to give up.
void check_interruption();

}  // namespace dl
