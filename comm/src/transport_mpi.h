// A Transport over point-to-point messages of MPI, polled so that a rank that never answers becomes an error.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "mpi.h"
#include "transport.h"

namespace dl {

// What all MpiTransports of a process share: a private duplicate of the world, and the lock that stands in where MPI
// gives less than MPI_THREAD_MULTIPLE.
struct MpiWorld {
  MpiWorld(Mpi& loaded, Mpi::Comm own, bool lock, double timeout) : mpi(loaded), comm(own), locks(lock), timeout_s(timeout) {}
  Mpi& mpi;
  Mpi::Comm comm;
  bool locks;
  double timeout_s;
  std::mutex guard;  // held around every MPI call if `locks`
};

class MpiTransport : public Transport {
 public:
  MpiTransport(std::shared_ptr<MpiWorld> world, std::vector<int> world_ranks, int rank, int channel);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  int world_rank(int rank) const override { return ranks_[static_cast<std::size_t>(rank)]; }
  void exchange(const void* out, std::size_t out_bytes, int to, void* in, std::size_t in_bytes, int from) override;
  void exchange_up_to(const void* out, std::size_t out_bytes, int to, void* in, std::size_t in_bytes, int from) override {
    exchange(out, out_bytes, to, in, in_bytes, from);  // MPI takes less than there is room for
  }
  void begin(const void* out, std::size_t out_bytes, int to, void* in, std::size_t in_bytes, int from) override;
  void finish() override;
  bool nudge() override;
  void withdraw() override;
  bool sum(void* data, std::size_t n, Dtype dtype) override;  // the first call makes a communicator
  std::string against_gpu_memory() const override { return world_->mpi.against_gpu_memory(); }
  void abandon() override { abandoned_ = true; }
  void has_core() override;
  std::unique_ptr<Transport> subset(const std::vector<int>& ranks, int channel) const override;

 private:
  template <class Call>
  auto locked(Call call);
  // Polls until done(), the timeout or abandon(), and says whether it was done.
  template <class Done>
  bool poll(Done done);
  struct Begun {
    int to, from;
    Mpi::Request incoming{}, outgoing{};
    bool received = true, sent = true;
  };
  Begun begun(const void* out, std::size_t out_bytes, int to, void* in, std::size_t in_bytes, int from);
  bool done(Begun& one);
  void finish(Begun& one);
  void withdraw(Begun& one);

  std::shared_ptr<MpiWorld> world_;
  std::vector<int> ranks_;
  int rank_;
  int channel_;
  std::atomic<bool> abandoned_{false};
  long patience_ = 2;  // polls before the core is given away
  bool has_own_ = false;
  Mpi::Comm own_{};  // of this group alone, if has_own_
  std::deque<Begun> flying_;
};

// The transport of the whole job. Collective: duplicates MPI_COMM_WORLD.
std::unique_ptr<Transport> mpi_transport(Mpi& mpi, double timeout_s);

}  // namespace dl
