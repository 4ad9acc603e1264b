#include "wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <climits>

#include "pause.h"

namespace dl {
namespace {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t), "a futex is 32 bits");
static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "a lock would not be shared between processes");

std::uint32_t* word(Counter& counter) { return reinterpret_cast<std::uint32_t*>(&counter.value); }

thread_local bool (*interrupted)() = nullptr;

bool reached(std::uint32_t value, std::uint32_t target) { return static_cast<std::int32_t>(value - target) >= 0; }

// Whether whoever is awaited has not come: watch() says why he never will.
template <class There>
bool still_expected(const std::function<void()>& watch, There there) {
  try {
    watch();
  } catch (const Interrupted&) {
    throw;
  } catch (const CommError&) {  // of whoever came after all, and has gone on, left or failed since
    if (!there()) throw;
    return false;
  }
  return true;
}

}  // namespace

Backoff backoff_for(int ranks_on_node, int nodes) {
  const long cores = sysconf(_SC_NPROCESSORS_ONLN);
  return nodes == 1 && ranks_on_node <= cores ? Backoff{2000, 200} : Backoff{20, 200};
}

Interruptible::Interruptible(bool (*asked)()) { interrupted = asked; }
Interruptible::~Interruptible() { interrupted = nullptr; }

void check_interruption() {
  if (interrupted != nullptr && interrupted()) throw Interrupted();
}

// The store and the load are sequentially consistent, as are the two in await: either the sleeper sees the new value,
// or this sees the sleeper.
void advance(Counter& counter, std::uint32_t to) {
  counter.value.store(to, std::memory_order_seq_cst);
  if (counter.sleepers.load(std::memory_order_seq_cst) != 0)
    syscall(SYS_futex, word(counter), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void await(Counter& counter, std::uint32_t target, const Backoff& backoff, const std::function<void()>& watch) {
  for (int i = 0; i < backoff.spins; ++i) {
    if (reached(counter.value.load(std::memory_order_acquire), target)) return;
    pause();
  }
  for (int i = 0; i < backoff.yields; ++i) {
    if (reached(counter.value.load(std::memory_order_acquire), target)) return;
    sched_yield();
  }
  const auto there_after_all = [&] { return reached(counter.value.load(std::memory_order_acquire), target); };
  for (;;) {
    counter.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t seen = counter.value.load(std::memory_order_seq_cst);
    const bool there = reached(seen, target);
    if (!there) {
      const timespec nap{0, 20'000'000};
      syscall(SYS_futex, word(counter), FUTEX_WAIT, seen, &nap, nullptr, 0);
    }
    counter.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    if (there || there_after_all()) return;
    if (!still_expected(watch, there_after_all)) return;
  }
}

void await_busily(Counter& counter, std::uint32_t target, const std::function<void()>& meanwhile,
                  const std::function<void()>& watch) {
  constexpr int until_naps = 20000;
  const timespec nap{0, 50'000};
  const auto there = [&] { return reached(counter.value.load(std::memory_order_acquire), target); };
  auto next_watch = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
  for (int looks = 1; !there(); ++looks) {
    meanwhile();
    if (looks < until_naps) sched_yield();
    else nanosleep(&nap, nullptr);
    if (looks % 64 != 0 || std::chrono::steady_clock::now() < next_watch) continue;
    if (!still_expected(watch, there)) return;
    next_watch = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
  }
}

}  // namespace dl
