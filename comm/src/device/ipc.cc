#include "device/ipc.h"

#include <algorithm>

#include "error.h"

namespace dl {
namespace {

constexpr unsigned most_blocks = 512;
constexpr std::uint32_t far_ahead = 1u << 30;

}  // namespace

IpcTeam::IpcTeam(const Gpu& gpu, std::vector<Cuda::Pointer> scratch, int rank)
    : cuda_(gpu.cuda), rank_(rank), scratch_(std::move(scratch)) {
  if (scratch_.size() > most_summed) throw CommError("more than " + std::to_string(most_summed) + " ranks share a node");
  Cuda::Module module = nullptr;
  cuda_.load_module(&module, kernels);
  cuda_.kernel_of(&sum_ranks_, module, "dl_sum_ranks");
}

Cuda::Pointer IpcTeam::at(int rank, Cuda::Pointer block) const {
  const auto own = static_cast<std::size_t>(rank_), theirs = static_cast<std::size_t>(rank);
  return scratch_[theirs] + (block - scratch_[own]);
}

void IpcTeam::sum(Cuda::Stream stream, const std::vector<Cuda::Pointer>& from, Cuda::Pointer to, std::size_t n, bool wide) {
  RankTable table{};
  std::copy(from.begin(), from.end(), table.at);
  std::uint32_t ranks = static_cast<std::uint32_t>(from.size()), numbers = static_cast<std::uint32_t>(n), is_wide = wide ? 1 : 0;
  void* parameters[] = {&table, &to, &ranks, &numbers, &is_wide};
  const unsigned blocks = std::min(most_blocks, (numbers + threads_of_a_block - 1) / threads_of_a_block);
  cuda_.launch(sum_ranks_, blocks, 1, 1, threads_of_a_block, 1, 1, 0, stream, parameters, nullptr);
}

void IpcTeam::sum_slices(Cuda::Stream stream, Cuda::Pointer block, std::size_t each, bool wide) {
  meet(stream, filled, ++sums_);
  const Cuda::Pointer offset = static_cast<Cuda::Pointer>(rank_) * each * (wide ? 8 : 4);
  std::vector<Cuda::Pointer> all;
  for (int rank = 0; rank < size(); ++rank) all.push_back(at(rank, block) + offset);
  sum(stream, all, block + offset, each, wide);
}

void IpcTeam::share_slices(Cuda::Stream stream, Cuda::Pointer block, std::size_t each, bool wide) {
  meet(stream, summed, ++shares_);
  const std::size_t bytes = each * (wide ? 8 : 4);
  for (int step = 1; step < size(); ++step) {  // not all from the same one at once
    const int other = (rank_ + step) % size();
    const Cuda::Pointer offset = static_cast<Cuda::Pointer>(other) * bytes;
    cuda_.copy_on_device(block + offset, at(other, block) + offset, bytes, stream);
  }
  meet(stream, fetched, shares_);  // before anybody fills the block anew
}

IpcInStreams::IpcInStreams(const Gpu& gpu, std::vector<Cuda::Pointer> scratch, char* pinned, int rank)
    : IpcTeam(gpu, std::move(scratch), rank), signals_(gpu, static_cast<std::size_t>(size()) * steps, pinned) {}

void IpcInStreams::meet(Cuda::Stream stream, Step step, std::uint32_t number) {
  signals_.post(stream, flag(rank_, step), number);
  for (int other = 0; other < size(); ++other)
    if (other != rank_) signals_.hold(stream, flag(other, step), number);
}

// At once, and again after what the stream will still post.
void IpcInStreams::let_go(Cuda::Stream stream) {
  for (const Step step : {filled, summed, fetched}) {
    const std::uint32_t number = (step == filled ? sums_ : shares_) + far_ahead;
    signals_.set(flag(rank_, step), number);
    try {
      signals_.post(stream, flag(rank_, step), number);
    } catch (const CommError&) {
      // then the stream posts nothing any more
    }
  }
}

}  // namespace dl
