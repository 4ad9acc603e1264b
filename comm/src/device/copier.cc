#include "device/copier.h"

#include <algorithm>
#include <cstdint>

namespace dl {

extern const char* const copier_kernel;  // copier_kernel.cc

namespace {

constexpr std::size_t few = 4;  // stretches that are copied one by one
constexpr unsigned most = 120;  // stretches of one launch: its parameters take at most 4 KB
constexpr unsigned threads = 256, most_blocks = 32, bytes_of_a_thread = 64;

// The kernel's first parameter: where the pieces are on the device, and where each begins in the dense memory.
struct Table {
  Cuda::Pointer at[most];
  std::uint32_t start[most + 1];
};

}  // namespace

Copier::Copier(const Gpu& gpu) : cuda_(gpu.cuda) {
  Cuda::Module module = nullptr;
  if (cuda_.load_module.code(&module, copier_kernel) == 0) cuda_.kernel_of(&kernel_, module, "dl_copy_pieces");
}

void Copier::gather(Cuda::Stream stream, const Flat& flat, std::size_t first, std::size_t n, char* dense) {
  copy(stream, flat, first, n, dense, false);
}

void Copier::scatter(Cuda::Stream stream, const Flat& flat, std::size_t first, std::size_t n, char* dense) {
  copy(stream, flat, first, n, dense, true);
}

void Copier::copy(Cuda::Stream stream, const Flat& flat, std::size_t first, std::size_t n, char* dense, bool back) {
  std::size_t stretches = 0;
  flat.stretches(first, n, [&](char*, std::size_t) { ++stretches; });
  if (stretches > few && kernel_ != nullptr) return by_kernel(stream, flat, first, n, dense, back);
  const std::size_t each = width(flat.dtype());
  flat.stretches(first, n, [&](char* array, std::size_t some) {
    const auto device = static_cast<Cuda::Pointer>(reinterpret_cast<std::uintptr_t>(array));
    if (back) cuda_.copy_to_device(device, dense, some * each, stream);
    else cuda_.copy_to_host(dense, device, some * each, stream);
    dense += some * each;
  });
}

void Copier::by_kernel(Cuda::Stream stream, const Flat& flat, std::size_t first, std::size_t n, char* dense, bool back) {
  Cuda::Pointer mapped = 0;
  cuda_.host_pointer(&mapped, dense, 0);
  Table table{};
  unsigned pieces = 0, largest = 0;
  auto launch = [&] {
    int into_pieces = back ? 1 : 0;
    void* parameters[] = {&table, &mapped, &into_pieces};
    const unsigned per_block = threads * bytes_of_a_thread;
    const unsigned blocks = std::min(most_blocks, (largest + per_block - 1) / per_block);
    cuda_.launch(kernel_, blocks, pieces, 1, threads, 1, 1, 0, stream, parameters, nullptr);
    mapped += table.start[pieces];
    pieces = largest = 0;
  };
  const std::size_t each = width(flat.dtype());
  flat.stretches(first, n, [&](char* array, std::size_t some) {
    const auto bytes = static_cast<std::uint32_t>(some * each);
    table.at[pieces] = static_cast<Cuda::Pointer>(reinterpret_cast<std::uintptr_t>(array));
    table.start[pieces + 1] = table.start[pieces] + bytes;
    largest = std::max(largest, bytes);
    if (++pieces == most) launch();
  });
  if (pieces > 0) launch();
}

}  // namespace dl
