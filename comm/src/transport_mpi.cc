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
constexpr std::size_t piece = std::size_t{1} << 30;  // MPI counts bytes in an int

// Polls eagerly at first, then leaves the core to others, then sleeps: MPI moves messages only while it is polled.
void rest(long polls) {
  if (polls < 200) return;
  if (polls < 20000) {
    sched_yield();
    return;
  }
  const timespec nap{0, 50000};
  nanosleep(&nap, nullptr);
}

}  // namespace

MpiTransport::MpiTransport(std::shared_ptr<MpiWorld> world, std::vector<int> world_ranks, int rank, int lane)
    : world_(std::move(world)), ranks_(std::move(world_ranks)), rank_(rank), lane_(lane) {}

void MpiTransport::exchange(const void* out, std::size_t out_bytes, int to, void* in, std::size_t in_bytes, int from) {
  const auto* send = static_cast<const char*>(out);
  auto* receive = static_cast<char*>(in);
  while (out_bytes > 0 || in_bytes > 0) {
    const std::size_t s = std::min(out_bytes, piece), r = std::min(in_bytes, piece);
    exchange_piece(send, static_cast<int>(s), to, receive, static_cast<int>(r), from);
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
    rest(polls);
    if (polls % 64 != 63) continue;
    const auto now = Clock::now();
    if (abandoned_ || now > deadline) return false;
    if (now < next_check) continue;
    check_interruption();
    next_check = now + std::chrono::milliseconds(20);
  }
  return true;
}

void MpiTransport::exchange_piece(const char* out, int out_bytes, int to, char* in, int in_bytes, int from) {
  Mpi& mpi = world_->mpi;
  Mpi::Request incoming{}, outgoing{};
  bool received = in_bytes == 0, sent = out_bytes == 0;
  if (!received) incoming = locked([&] { return mpi.irecv(in, in_bytes, world_rank(from), lane_, world_->comm); });
  if (!sent) outgoing = locked([&] { return mpi.isend(out, out_bytes, world_rank(to), lane_, world_->comm); });
  const auto withdraw = [&] {  // what comes late would be written into memory that is another's by then
    if (!received) locked([&] { mpi.cancel(incoming); });
  };
  try {
    const bool done = poll([&] {
      if (!received) received = locked([&] { return mpi.test(incoming); });
      if (!sent) sent = locked([&] { return mpi.test(outgoing); });
      return received && sent;
    });
    if (done) return;
  } catch (const Interrupted&) {
    withdraw();
    throw;
  }
  withdraw();
  throw no_answer(world_rank(received ? to : from), world_rank(rank_), world_->timeout_s);
}

// Making the communicator blocks, which under the lock would keep other threads from ever joining in: there, no. It is
// made once all have come, so that a rank which never does is named after the timeout.
bool MpiTransport::sum(void* data, std::size_t n, Dtype dtype) {
  if (world_->locks) return false;
  if (!has_own_) {
    barrier(*this);
    own_ = world_->mpi.group(world_->comm, ranks_, lane_);
    has_own_ = true;
  }
  auto* at = static_cast<char*>(data);
  while (n > 0) {
    const std::size_t some = std::min(n, piece / width(dtype));
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

std::unique_ptr<Transport> MpiTransport::subset(const std::vector<int>& ranks, int lane) const {
  std::vector<int> world;
  for (int rank : ranks) world.push_back(world_rank(rank));
  const auto mine = std::find(world.begin(), world.end(), world_rank(rank_)) - world.begin();
  return std::make_unique<MpiTransport>(world_, std::move(world), static_cast<int>(mine), lane);
}

std::unique_ptr<Transport> mpi_transport(Mpi& mpi, double timeout_s) {
  auto world = std::make_shared<MpiWorld>(mpi, mpi.dup(mpi.world()), !mpi.thread_multiple(), timeout_s);
  std::vector<int> everyone(static_cast<std::size_t>(mpi.size(world->comm)));
  std::iota(everyone.begin(), everyone.end(), 0);
  return std::make_unique<MpiTransport>(world, std::move(everyone), mpi.rank(world->comm), 0);
}

}  // namespace dl
