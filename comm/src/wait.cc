#include "wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

#include "pause.h"

namespace dl {
namespace {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t), "a futex is 32 bits");
static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "a lock would not be shared between processes");

std::uint32_t* word(Counter& counter) { return reinterpret_cast<std::uint32_t*>(&counter.value); }

thread_local bool (*interrupted)() = nullptr;

bool reached(std::uint32_t value, std::uint32_t target) { return static_cast<std::int32_t>(value - target) >= 0; }

}  // namespace

Patience patience_for(int ranks_on_node) {
  const long cores = sysconf(_SC_NPROCESSORS_ONLN);
  return ranks_on_node <= cores ? Patience{2000, 200} : Patience{20, 200};
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

void await(Counter& counter, std::uint32_t target, const Patience& patience, const std::function<void()>& watch) {
  for (int i = 0; i < patience.spins; ++i) {
    if (reached(counter.value.load(std::memory_order_acquire), target)) return;
    pause();
  }
  for (int i = 0; i < patience.yields; ++i) {
    if (reached(counter.value.load(std::memory_order_acquire), target)) return;
    sched_yield();
  }
  for (;;) {
    counter.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t seen = counter.value.load(std::memory_order_seq_cst);
    const bool there = reached(seen, target);
    if (!there) {
      const timespec nap{0, 20'000'000};
      syscall(SYS_futex, word(counter), FUTEX_WAIT, seen, &nap, nullptr, 0);
    }
    counter.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    if (there || reached(counter.value.load(std::memory_order_acquire), target)) return;
    try {
      watch();
    } catch (const Interrupted&) {
      throw;
    } catch (const CommError&) {  // of whoever came after all, and has gone on, left or failed since
      if (!reached(counter.value.load(std::memory_order_acquire), target)) throw;
      return;
    }
  }
}

}  // namespace dl
