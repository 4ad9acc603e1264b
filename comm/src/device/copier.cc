#include "device/copier.h"

#include <algorithm>
#include <cstdint>

namespace dl {
namespace {

constexpr std::size_t few = 4;                     // stretches that are copied one by one
constexpr unsigned bytes_of_a_thread = 64;
constexpr unsigned over_the_link = 32, on_the_gpu = 512;  // blocks of a piece, at most: enough to fill either

Cuda::Pointer pointer(const char* at) { return static_cast<Cuda::Pointer>(reinterpret_cast<std::uintptr_t>(at)); }

std::uint32_t log2(std::size_t width) { return width == 8 ? 3 : width == 4 ? 2 : width == 2 ? 1 : 0; }

// The float that a sum is carried in, on the GPU as on the host.
Move summed_as(Dtype dtype) {
  Move how;
  how.kind = dtype == Dtype::float16    ? Move::float16
             : dtype == Dtype::bfloat16 ? Move::bfloat16
             : dtype == Dtype::float32  ? Move::float32
                                        : Move::float64;
  how.array_shift = log2(width(dtype));
  how.dense_shift = std::max(how.array_shift, 2u);
  return how;
}

}  // namespace

Copier::Copier(const Gpu& gpu, char* pinned) : cuda_(gpu.cuda), pinned_(pinned) {
  if (pinned != nullptr) cuda_.host_pointer(&mapped_, pinned, 0);
  Cuda::Module module = nullptr;
  if (cuda_.load_module.code(&module, kernels) == 0) cuda_.kernel_of(&kernel_, module, "dl_move_pieces");
}

void Copier::gather(Cuda::Stream stream, const Flat& flat, std::size_t first, std::size_t n, char* dense) {
  copy(stream, flat, first, n, dense, false);
}

void Copier::scatter(Cuda::Stream stream, const Flat& flat, std::size_t first, std::size_t n, char* dense) {
  copy(stream, flat, first, n, dense, true);
}

void Copier::widen(Cuda::Stream stream, const Flat& flat, std::size_t first, std::size_t n, Cuda::Pointer dense) {
  by_kernel(stream, flat, first, n, dense, summed_as(flat.dtype()), on_the_gpu);
}

void Copier::narrow(Cuda::Stream stream, const Flat& flat, std::size_t first, std::size_t n, Cuda::Pointer dense,
                    double divisor) {
  Move how = summed_as(flat.dtype());
  how.back = 1;
  how.divisor = divisor;
  by_kernel(stream, flat, first, n, dense, how, on_the_gpu);
}

void Copier::copy(Cuda::Stream stream, const Flat& flat, std::size_t first, std::size_t n, char* dense, bool back) {
  const std::size_t each = width(flat.dtype());
  std::size_t stretches = 0;
  std::uintptr_t all = 0;  // the lowest bits of what the kernel could take four bytes at a time
  flat.stretches(first, n, [&](const char* array, std::size_t some) {
    ++stretches;
    all |= reinterpret_cast<std::uintptr_t>(array) | some * each;
  });
  if (stretches > few && kernel_ != nullptr) {
    Move how;
    how.back = back ? 1 : 0;
    how.array_shift = how.dense_shift = all % 4 == 0 ? 2 : log2(each);
    how.kind = how.array_shift;  // bytes, twos, fours
    return by_kernel(stream, flat, first, n, mapped_ + static_cast<Cuda::Pointer>(dense - pinned_), how, over_the_link);
  }
  flat.stretches(first, n, [&](char* array, std::size_t some) {
    if (back) cuda_.copy_to_device(pointer(array), dense, some * each, stream);
    else cuda_.copy_to_host(dense, pointer(array), some * each, stream);
    dense += some * each;
  });
}

void Copier::by_kernel(Cuda::Stream stream, const Flat& flat, std::size_t first, std::size_t n, Cuda::Pointer dense,
                       Move how, unsigned most_blocks) {
  PieceTable table{};
  unsigned pieces = 0, largest = 0;
  auto launch = [&] {
    void* parameters[] = {&table, &dense, &how.back, &how.kind, &how.array_shift, &how.dense_shift, &how.divisor};
    const unsigned per_block = threads_of_a_block * (bytes_of_a_thread >> how.array_shift);
    const unsigned blocks = std::min(most_blocks, (largest + per_block - 1) / per_block);
    cuda_.launch(kernel_, blocks, pieces, 1, threads_of_a_block, 1, 1, 0, stream, parameters, nullptr);
    dense += static_cast<Cuda::Pointer>(table.start[pieces]) << how.dense_shift;
    pieces = largest = 0;
  };
  const std::size_t each = width(flat.dtype());
  flat.stretches(first, n, [&](const char* array, std::size_t some) {
    const auto units = static_cast<std::uint32_t>(some * each >> how.array_shift);
    table.at[pieces] = pointer(array);
    table.start[pieces + 1] = table.start[pieces] + units;
    largest = std::max(largest, units);
    if (++pieces == most_pieces) launch();
  });
  if (pieces > 0) launch();
}

}  // namespace dl
