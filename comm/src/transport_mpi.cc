#include "transport_mpi.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "error.h"
#include "wait.h"

namespace dl {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t most = std::size_t{1} << 30;  // MPI counts bytes in an int

// Polls some times, then leaves the core to others between the polls, then sleeps: MPI moves messages only while it is polled.
// Where nobody else wants the core, leaving it costs less than a poll; where a rank does, it may be the one that is waited for.
void rest(long polls, long patience) {
  if (polls < patience) return;
  if (polls < 20000) {
    sched_yield();
    return;
  }
  const timespec nap{0, 50000};
  nanosleep(&nap, nullptr);
}

}  // namespace

MpiTransport::MpiTransport(std::shared_ptr<MpiWorld> world, std::vector<int> world_ranks, int rank, int channel)
    : world_(std::move(world)), ranks_(std::move(world_ranks)), rank_(rank), channel_(channel) {}

void MpiTransport::exchange(const void* out, std::size_t out_bytes, int to, void* in, std::size_t in_bytes, int from) {
  const auto* send = static_cast<const char*>(out);
  auto* receive = static_cast<char*>(in);
  while (out_bytes > 0 || in_bytes > 0) {
    const std::size_t s = std::min(out_bytes, most), r = std::min(in_bytes, most);
    Begun one = begun(send, s, to, receive, r, from);
    finish(one);
    if (s > 0) send += s;
    if (r > 0) receive += r;
    out_bytes -= s;
    in_bytes -= r;
  }
}

template <class Call>
auto MpiTransport::locked(Call call) {
  if (!world_->locks) return call();
  const std::lock_guard<std::mutex> lock(world_->guard);
  return call();
}

template <class Done>
bool MpiTransport::poll(Done done) {
  const auto begun = Clock::now();
  const auto deadline = begun + std::chrono::duration<double>(world_->timeout_s);
  auto next_check = begun + std::chrono::milliseconds(20);
  for (long polls = 0; !done(); ++polls) {
    rest(polls, patience_);
    if (polls % 64 != 63) continue;
    const auto now = Clock::now();
    if (abandoned_ || now > deadline) return false;
    if (now < next_check) continue;
    check_interruption();
    next_check = now + std::chrono::milliseconds(20);
  }
  return true;
}

MpiTransport::Begun MpiTransport::begun(const void* out, std::size_t out_bytes, int to, void* in, std::size_t in_bytes,
                                        int from) {
  Mpi& mpi = world_->mpi;
  Begun one{to, from};
  if (in_bytes > 0)
    one.incoming = locked([&] { return mpi.irecv(in, static_cast<int>(in_bytes), world_rank(from), channel_, world_->comm); });
  one.received = in_bytes == 0;
  if (out_bytes > 0)
    one.outgoing = locked([&] { return mpi.isend(out, static_cast<int>(out_bytes), world_rank(to), channel_, world_->comm); });
  one.sent = out_bytes == 0;
  return one;
}

bool MpiTransport::done(Begun& one) {
  if (!one.received) one.received = locked([&] { return world_->mpi.test(one.incoming); });
  if (!one.sent) one.sent = locked([&] { return world_->mpi.test(one.outgoing); });
  return one.received && one.sent;
}

void MpiTransport::finish(Begun& one) {
  try {
    if (poll([&] { return done(one); })) return;
  } catch (...) {
    withdraw(one);
    throw;
  }
  withdraw(one);
  throw no_answer(world_rank(one.received ? one.to : one.from), world_rank(rank_), world_->timeout_s);
}

void MpiTransport::withdraw(Begun& one) {
  if (!one.received) locked([&] { world_->mpi.cancel(one.incoming); });
  one.received = true;
}

void MpiTransport::begin(const void* out, std::size_t out_bytes, int to, void* in, std::size_t in_bytes, int from) {
  if (std::max(out_bytes, in_bytes) <= most) {
    flying_.push_back(begun(out, out_bytes, to, in, in_bytes, from));
  } else {
    exchange(out, out_bytes, to, in, in_bytes, from);
    flying_.push_back({to, from});
  }
}

void MpiTransport::finish() {
  Begun one = flying_.front();
  flying_.pop_front();
  finish(one);
}

bool MpiTransport::nudge() {
  for (Begun& one : flying_)
    if (!done(one)) return true;
  return false;
}

void MpiTransport::withdraw() {
  for (Begun& one : flying_) withdraw(one);
  flying_.clear();
}

// Making the communicator blocks, which under the lock would keep other threads from ever joining in: there, no. It is
// made once all have come, so that a rank which never does is named after the timeout.
bool MpiTransport::sum(void* data, std::size_t n, Dtype dtype) {
  if (world_->locks) return false;
  if (!has_own_) {
    barrier(*this);
    own_ = world_->mpi.group(world_->comm, ranks_, channel_);
    has_own_ = true;
  }
  auto* at = static_cast<char*>(data);
  while (n > 0) {
    const std::size_t some = std::min(n, most / width(dtype));
    Mpi::Request request = world_->mpi.start_sum(at, static_cast<int>(some), dtype, own_);
    if (!poll([&] { return world_->mpi.test(request); }))
      throw CommError("the MPI library's allreduce among " + std::to_string(size()) + " nodes has not ended within " +
                          std::to_string(static_cast<long>(world_->timeout_s)) + " s",
                      "a rank of another node does not answer: its own output says why");
    at += some * width(dtype);
    n -= some;
  }
  return true;
}

// Where the core is another program's, too, giving it away between two polls costs a time slice of that, far more than a message.
void MpiTransport::has_core() { patience_ = 2000; }

std::unique_ptr<Transport> MpiTransport::subset(const std::vector<int>& ranks, int channel) const {
  std::vector<int> world;
  for (int rank : ranks) world.push_back(world_rank(rank));
  const auto mine = std::find(world.begin(), world.end(), world_rank(rank_)) - world.begin();
  return std::make_unique<MpiTransport>(world_, std::move(world), static_cast<int>(mine), channel);
}

std::unique_ptr<Transport> mpi_transport(Mpi& mpi, double timeout_s) {
  auto world = std::make_shared<MpiWorld>(mpi, mpi.dup(mpi.world()), !mpi.thread_multiple(), timeout_s);
  std::vector<int> everyone(static_cast<std::size_t>(mpi.size(world->comm)));
  std::iota(everyone.begin(), everyone.end(), 0);
  return std::make_unique<MpiTransport>(world, std::move(everyone), mpi.rank(world->comm), 0);
}

}  // namespace dl
