// NCCL: the functions that dl_comm uses, from the library that the framework has loaded or brought along.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "device/cuda.h"
#include "device/loaded.h"
#include "device/neighbours.h"
#include "flat.h"

namespace dl {

class Nccl {
 public:
  using Comm = struct NcclComm*;
  struct Id {
    char bytes[128];
  };
  struct Config {  // as NCCL 2.14 had it; later ones take what follows as not given
    std::size_t size = sizeof(Config);
    unsigned magic = 0xcafebeef, version = 21400;
    int blocking = 0;
  };
  static constexpr int in_progress = 7;  // ncclInProgress

  // The one NCCL of this process: `named` at the first call; or the one in the process; or that of the Python environment
  // at `prefix`; or the system's. Throws CommError that says what is missing, also where it is older than 2.14, the first
  // whose calls return although another rank does not come.
  static const Nccl& load(const std::string& named, const std::string& prefix);
  Nccl(const std::string& named, const std::string& prefix);

  const Loaded& loaded() const { return loaded_; }
  std::string explained(int code) const;
  int version() const { return version_; }

 private:
  Loaded loaded_;
  int version_ = 0;

  template <class... Arguments>
  using F = Function<Nccl, Arguments...>;

 public:
  F<int*> get_version{*this, "ncclGetVersion"};
  F<Id*> unique_id{*this, "ncclGetUniqueId"};
  F<Comm*, int, Id, int, Config*> init_rank{*this, "ncclCommInitRankConfig", Need::optional};  // 2.14
  F<Comm, int*> async_error{*this, "ncclCommGetAsyncError"};
  F<Comm> abort{*this, "ncclCommAbort"};
  F<> group_start{*this, "ncclGroupStart"};
  F<> group_end{*this, "ncclGroupEnd"};
  F<const void*, void*, std::size_t, int, int, Comm, Cuda::Stream> all_reduce{*this, "ncclAllReduce"};
  F<const void*, void*, std::size_t, int, int, Comm, Cuda::Stream> reduce_scatter{*this, "ncclReduceScatter"};
  F<const void*, void*, std::size_t, int, Comm, Cuda::Stream> all_gather{*this, "ncclAllGather"};
  F<const void*, void*, std::size_t, int, int, Comm, Cuda::Stream> broadcast{*this, "ncclBroadcast"};
};

// A communicator of NCCL's. The GPU's context is current, here and in the calls.
class NcclTeam : public Neighbours {
 public:
  // Begins to join the others under rank 0's `id`, without waiting for them.
  NcclTeam(const Nccl& nccl, const Nccl::Id& id, int rank, int size, double timeout_s);
  NcclTeam(const NcclTeam&) = delete;
  NcclTeam& operator=(const NcclTeam&) = delete;

  // Whether all have joined by now. Throws CommError where NCCL has failed.
  bool joined() const;

  // Whether NCCL gives what dl_comm promises. It would sum half types in half types (so they are widened first: Blocks),
  // rounds integer means otherwise than towards zero, and has no 16-bit integers.
  static bool sums(Dtype dtype, Op op);

  // Arrays of a type and operation that it sums / of any type. In place, on `stream`.
  void all_reduce(Cuda::Stream stream, const Flat& flat, Op op);
  void broadcast(Cuda::Stream stream, const Flat& flat, int root);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void sum_slices(Cuda::Stream stream, Cuda::Pointer block, std::size_t each, bool wide) override;
  void share_slices(Cuda::Stream stream, Cuda::Pointer block, std::size_t each, bool wide) override;
  void let_go(Cuda::Stream) override { nccl_.abort.code(comm_); }

 private:
  // What `enqueue` calls, as one operation, which is on the stream when this returns.
  template <class Enqueue>
  void grouped(Enqueue enqueue);

  const Nccl& nccl_;
  int rank_, size_;
  double timeout_s_;
  Nccl::Comm comm_ = nullptr;  // as long as the process lives, or until it is let go
};

}  // namespace dl
