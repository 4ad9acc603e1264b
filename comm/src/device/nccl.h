// NCCL: the functions that dl_comm uses, from the library that the framework has loaded or brought along.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "device/cuda.h"
#include "device/loaded.h"
#include "flat.h"

namespace dl {

class Nccl {
 public:
  using Comm = struct NcclComm*;
  struct Id {
    char bytes[128];
  };

  // The one NCCL of this process: `named` at the first call; or the one in the process; or that of the Python environment
  // at `prefix`; or the system's. Throws CommError that says what is missing, also where it is older than 2.10.
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
  F<Comm*, int, Id, int> init_rank{*this, "ncclCommInitRank"};
  F<> group_start{*this, "ncclGroupStart"};
  F<> group_end{*this, "ncclGroupEnd"};
  F<const void*, void*, std::size_t, int, int, Comm, Cuda::Stream> all_reduce{*this, "ncclAllReduce"};
};

// Whether NCCL gives what dl_comm promises: floats in their own precision. It sums half types in half types and integer
// means otherwise than towards zero, so these go through the host.
bool nccl_fits(const std::vector<Buffer>& buffers, int precision);

// The ranks' communicator, and its stream.
class NcclTeam {
 public:
  // Collective: `id` is rank 0's. The GPU's context is current, here and in the calls.
  NcclTeam(const Nccl& nccl, const Gpu& gpu, const Nccl::Id& id, int rank, int size);

  void begin_after(Cuda::Event event);
  void all_reduce(const std::vector<Buffer>& buffers, Op op);
  void finish_before(Cuda::Stream stream);

 private:
  const Nccl& nccl_;
  const Cuda& cuda_;
  Nccl::Comm comm_ = nullptr;
  Cuda::Stream stream_ = nullptr;
  Cuda::Event done_ = nullptr;
};

}  // namespace dl
