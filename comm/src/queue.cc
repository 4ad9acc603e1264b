#include "queue.h"

#include <string>
#include <utility>

#include "error.h"
#include "wait.h"

namespace dl {

Queue::~Queue() {
  {
    const std::lock_guard<std::mutex> lock(guard_);
    closing_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::uint64_t Queue::start(std::function<void()> job) {
  const std::lock_guard<std::mutex> lock(guard_);
  if (!thread_.joinable()) thread_ = std::thread([this] { loop(); });
  jobs_.push_back({++tickets_, std::move(job)});
  changed_.notify_all();
  return tickets_;
}

Span Queue::wait(std::uint64_t ticket, bool interruptible) {
  std::unique_lock<std::mutex> lock(guard_);
  if (ticket == 0 || ticket > tickets_) throw CommError("no call has the ticket " + std::to_string(ticket));
  auto pending = [&] {
    if (done_.count(ticket) != 0) return false;
    if (busy_) return true;
    for (const Job& job : jobs_)
      if (job.ticket == ticket) return true;
    return false;
  };
  while (interruptible && !changed_.wait_for(lock, std::chrono::milliseconds(20), [&] { return !pending(); })) {
    lock.unlock();
    check_interruption();
    lock.lock();
  }
  changed_.wait(lock, [&] { return !pending(); });
  const auto entry = done_.find(ticket);
  if (entry == done_.end()) throw CommError("the ticket " + std::to_string(ticket) + " has been waited for already");
  const Done done = entry->second;
  done_.erase(entry);
  lock.unlock();
  if (done.error) std::rethrow_exception(done.error);
  return done.span;
}

void Queue::run(const std::function<void()>& job) {
  std::unique_lock<std::mutex> lock(guard_);
  changed_.wait(lock, [&] { return !busy_ && jobs_.empty(); });
  busy_ = true;
  lock.unlock();
  std::exception_ptr error;
  try {
    job();
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  busy_ = false;
  changed_.notify_all();
  lock.unlock();
  if (error) std::rethrow_exception(error);
}

void Queue::drain() {
  std::unique_lock<std::mutex> lock(guard_);
  changed_.wait(lock, [&] { return !busy_ && jobs_.empty(); });
}

void Queue::loop() {
  std::unique_lock<std::mutex> lock(guard_);
  for (;;) {
    changed_.wait(lock, [&] { return closing_ || (!busy_ && !jobs_.empty()); });
    if (jobs_.empty() || busy_) {
      if (closing_) return;
      continue;
    }
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    busy_ = true;
    lock.unlock();
    Done done;
    done.span.begin = std::chrono::steady_clock::now();
    try {
      job.work();
    } catch (...) {
      done.error = std::current_exception();
    }
    done.span.end = std::chrono::steady_clock::now();
    lock.lock();
    done_[job.ticket] = done;
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace dl
