// Ranks of a node that open each other's GPU memory (CUDA IPC), on one GPU or on neighbours. Each sums its slice out of all
// ranks' blocks by one kernel, in rank order, so the bits are the host's; then each fetches the others' slices.
#pragma once

#include <cstdint>
#include <vector>

#include "device/kernels.h"
#include "device/neighbours.h"
#include "device/signals.h"

namespace dl {

class IpcTeam : public Neighbours {
 public:
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(scratch_.size()); }
  void sum_slices(Cuda::Stream stream, Cuda::Pointer block, std::size_t each, bool wide) override;
  void share_slices(Cuda::Stream stream, Cuda::Pointer block, std::size_t each, bool wide) override;

 protected:
  // `scratch`: where each rank's memory lies for this one. Throws CommError where the driver lacks what it takes.
  IpcTeam(const Gpu& gpu, std::vector<Cuda::Pointer> scratch, int rank);

  // What `stream` gets from now on comes after what all ranks' streams have had, each in its `number`th call, before this step.
  enum Step { filled, summed, fetched, steps };
  virtual void meet(Cuda::Stream stream, Step step, std::uint32_t number) = 0;

  // Enqueues: to[i] = from[0][i] + from[1][i] + ...; n numbers
  void sum(Cuda::Stream stream, const std::vector<Cuda::Pointer>& from, Cuda::Pointer to, std::size_t n, bool wide);

  const Cuda& cuda_;
  int rank_;
  std::uint32_t sums_ = 0, shares_ = 0;  // calls so far

 private:
  Cuda::Pointer at(int rank, Cuda::Pointer block) const;  // this rank's block, in another's memory

  std::vector<Cuda::Pointer> scratch_;
  Cuda::Kernel sum_ranks_ = nullptr;
};

// They wait for each other in their streams, by numbers in pinned memory that all of them share (Signals): no host waits.
class IpcInStreams : public IpcTeam {
 public:
  // Bytes of pinned memory that the ranks share, zeroed at first.
  static std::size_t footprint(int size) { return Signals::footprint(static_cast<std::size_t>(size) * steps); }

  IpcInStreams(const Gpu& gpu, std::vector<Cuda::Pointer> scratch, char* pinned, int rank);
  void let_go(Cuda::Stream stream) override;

 private:
  std::size_t flag(int rank, Step step) const { return static_cast<std::size_t>(rank) * steps + step; }
  void meet(Cuda::Stream stream, Step step, std::uint32_t number) override;

  Signals signals_;
};

}  // namespace dl
