#include "device/blocks.h"

#include <algorithm>

#include "error.h"

namespace dl {
namespace {

constexpr std::size_t grain = 32;  // numbers: slices begin at whole lines of the GPU's caches

}  // namespace

bool Blocks::sums(Dtype dtype, Op op, int precision) {
  const bool is_half = dtype == Dtype::float16 || dtype == Dtype::bfloat16;
  const bool is_float = is_half || dtype == Dtype::float32 || dtype == Dtype::float64;
  return is_float && (op == Op::sum || op == Op::mean) && (precision == 0 || dtype == Dtype::float64);
}

Blocks::Blocks(const Gpu& gpu, const Settings& settings, Neighbours& neighbours, Cuda::Pointer scratch)
    : copier_(gpu), neighbours_(neighbours), scratch_(scratch), bytes_(block_bytes(settings)) {
  if (!copier_.has_kernel()) throw CommError("the driver does not take dl_comm's kernels");
}

std::deque<Blocks::Block> Blocks::cut(const Flat& flat, std::size_t blocks_before) const {
  const bool wide = flat.dtype() == Dtype::float64;
  const std::size_t width = wide ? 8 : 4, ranks = static_cast<std::size_t>(neighbours_.size());
  const std::size_t most = bytes_ / width / ranks / grain * grain;  // numbers of a slice
  std::deque<Block> blocks;
  for (std::size_t first = 0; first < flat.size(); first += most * ranks) {
    const std::size_t n = std::min(most * ranks, flat.size() - first);
    const std::size_t each = ((n + ranks - 1) / ranks + grain - 1) / grain * grain;
    const std::size_t begin = std::min(static_cast<std::size_t>(neighbours_.rank()) * each, n);
    const Cuda::Pointer at = scratch_ + ((blocks_before + blocks.size()) % 2) * bytes_;
    char* const mine = reinterpret_cast<char*>(static_cast<std::uintptr_t>(at + begin * width));
    const Buffer slice{mine, std::min(each, n - begin), wide ? Dtype::float64 : Dtype::float32};
    blocks.push_back({flat, first, n, at, each, wide, slice});
  }
  return blocks;
}

void Blocks::sum(Cuda::Stream stream, const Block& block) {
  copier_.widen(stream, block.flat, block.first, block.n, block.at);
  neighbours_.sum_slices(stream, block.at, block.each, block.wide);
}

void Blocks::finish(Cuda::Stream stream, const Block& block, double divisor) {
  neighbours_.share_slices(stream, block.at, block.each, block.wide);
  copier_.narrow(stream, block.flat, block.first, block.n, block.at, divisor);
}

}  // namespace dl
