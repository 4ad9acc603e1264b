// Jobs done one after the other, in the order in which they came, by a thread of their own or by whoever waits.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

namespace dl {

// When a job ran, on this machine's steady clock.
struct Span {
  std::chrono::steady_clock::time_point begin, end;
};

// Invariant: at most one job runs at a time. The thread starts with the first start(). All fields are guarded by guard_.
class Queue {
 public:
  ~Queue();

  // Adds a job to be done in the background, and returns its ticket.
  std::uint64_t start(std::function<void()> job);

  // Returns once the job of this ticket is done, and when it ran; throws what it threw. A ticket is good for one wait.
  // An interruptible one throws Interrupted (wait.h) while the job goes on; the ticket is then good for another.
  Span wait(std::uint64_t ticket, bool interruptible = false);

  // Does the job now if nothing else is running or queued, in the caller's thread; else after all that was started.
  void run(const std::function<void()>& job);

  // Returns once nothing is running or queued.
  void drain();

 private:
  struct Job {
    std::uint64_t ticket;
    std::function<void()> work;
  };
  struct Done {
    std::exception_ptr error;
    Span span;
  };
  void loop();

  std::mutex guard_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::map<std::uint64_t, Done> done_;
  std::uint64_t tickets_ = 0;
  bool busy_ = false;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace dl
