#include "transport_local.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

#include "error.h"

namespace dl {

LocalTransport::LocalTransport(std::shared_ptr<LocalMail> mail, std::vector<int> world_ranks, int rank, int channel,
                               double timeout_s)
    : mail_(std::move(mail)), ranks_(std::move(world_ranks)), rank_(rank), channel_(channel), timeout_s_(timeout_s) {}

void LocalTransport::exchange(const void* out, std::size_t out_bytes, int to, void* in, std::size_t in_bytes, int from) {
  deliver(out, out_bytes, to, in, in_bytes, from, true);
}

void LocalTransport::exchange_up_to(const void* out, std::size_t out_bytes, int to, void* in, std::size_t in_bytes, int from) {
  deliver(out, out_bytes, to, in, in_bytes, from, false);
}

void LocalTransport::deliver(const void* out, std::size_t out_bytes, int to, void* in, std::size_t in_bytes, int from,
                             bool exactly) {
  const int me = world_rank(rank_);
  std::unique_lock<std::mutex> lock(mail_->guard);
  if (out_bytes > 0) {
    const auto* first = static_cast<const char*>(out);
    mail_->letters[{me, world_rank(to), channel_}].emplace_back(first, first + out_bytes);
    mail_->arrived.notify_all();
  }
  if (in_bytes == 0) return;
  auto& box = mail_->letters[{world_rank(from), me, channel_}];
  const auto limit = std::chrono::milliseconds(static_cast<long long>(timeout_s_ * 1000));
  mail_->arrived.wait_until(lock, std::chrono::system_clock::now() + limit, [&] { return !box.empty() || abandoned_; });
  if (box.empty())
    throw no_answer(world_rank(from), me, timeout_s_);
  if (exactly ? box.front().size() != in_bytes : box.front().size() > in_bytes)
    throw CommError("rank " + std::to_string(world_rank(from)) + " sent " + std::to_string(box.front().size()) +
                    " bytes where rank " + std::to_string(me) + " expects " + std::to_string(in_bytes));
  std::memcpy(in, box.front().data(), box.front().size());
  box.pop_front();
}

void LocalTransport::begin(const void* out, std::size_t out_bytes, int to, void* in, std::size_t in_bytes, int from) {
  deliver(out, out_bytes, to, nullptr, 0, 0, true);
  awaited_.push_back({in, in_bytes, from});
}

void LocalTransport::finish() {
  const Awaited one = awaited_.front();
  awaited_.pop_front();
  deliver(nullptr, 0, 0, one.in, one.bytes, one.from, false);
}

void LocalTransport::abandon() {
  const std::lock_guard<std::mutex> lock(mail_->guard);
  abandoned_ = true;
  mail_->arrived.notify_all();
}

std::unique_ptr<Transport> LocalTransport::subset(const std::vector<int>& ranks, int channel) const {
  std::vector<int> world;
  for (int rank : ranks) world.push_back(world_rank(rank));
  const auto mine = std::find(world.begin(), world.end(), world_rank(rank_)) - world.begin();
  return std::make_unique<LocalTransport>(mail_, std::move(world), static_cast<int>(mine), channel, timeout_s_);
}

std::vector<std::unique_ptr<Transport>> local_transports(int n, double timeout_s) {
  auto mail = std::make_shared<LocalMail>();
  std::vector<int> everyone(static_cast<std::size_t>(n));
  std::iota(everyone.begin(), everyone.end(), 0);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank : everyone) transports.push_back(std::make_unique<LocalTransport>(mail, everyone, rank, 0, timeout_s));
  return transports;
}

}  // namespace dl
