// A Transport whose ranks are threads of one process: for tests, and for the sanitizers.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "transport.h"

namespace dl {

// The post office that the ranks share. All fields are guarded by `guard`.
struct LocalMail {
  using Route = std::tuple<int, int, int>;  // from, to, channel
  std::mutex guard;
  std::condition_variable arrived;
  std::map<Route, std::deque<std::vector<char>>> letters;
};

class LocalTransport : public Transport {
 public:
  LocalTransport(std::shared_ptr<LocalMail> mail, std::vector<int> world_ranks, int rank, int channel, double timeout_s);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  int world_rank(int rank) const override { return ranks_[static_cast<std::size_t>(rank)]; }
  void exchange(const void* out, std::size_t out_bytes, int to, void* in, std::size_t in_bytes, int from) override;
  void exchange_up_to(const void* out, std::size_t out_bytes, int to, void* in, std::size_t in_bytes, int from) override;
  void begin(const void* out, std::size_t out_bytes, int to, void* in, std::size_t in_bytes, int from) override;
  void finish() override;
  void withdraw() override { awaited_.clear(); }
  void abandon() override;
  std::unique_ptr<Transport> subset(const std::vector<int>& ranks, int channel) const override;

 private:
  void deliver(const void* out, std::size_t out_bytes, int to, void* in, std::size_t in_bytes, int from, bool exactly);

  std::shared_ptr<LocalMail> mail_;
  std::vector<int> ranks_;
  int rank_;
  int channel_;
  double timeout_s_;
  std::atomic<bool> abandoned_{false};
  struct Awaited {
    void* in;
    std::size_t bytes;
    int from;
  };
  std::deque<Awaited> awaited_;  // of what was begun
};

// The transports of n ranks that are threads of this process.
std::vector<std::unique_ptr<Transport>> local_transports(int n, double timeout_s);

}  // namespace dl
