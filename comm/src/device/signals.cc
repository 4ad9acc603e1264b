#include "device/signals.h"

#include <memory>
#include <new>
#include <thread>

namespace dl {
namespace {

constexpr unsigned mapped = 1 | 2;  // CU_MEMHOSTALLOC_PORTABLE, DEVICEMAP
constexpr unsigned greater_or_equal = 0;

// What a function of the host does where the driver cannot wait and write in a stream.
struct Errand {
  std::atomic<std::uint32_t>& flag;
  std::uint32_t value;
};

void do_post(void* errand) {
  const std::unique_ptr<Errand> one(static_cast<Errand*>(errand));
  one->flag.store(one->value, std::memory_order_release);
}

void do_hold(void* errand) {
  const std::unique_ptr<Errand> one(static_cast<Errand*>(errand));
  while (static_cast<std::int32_t>(one->flag.load(std::memory_order_acquire) - one->value) < 0)
    std::this_thread::sleep_for(std::chrono::microseconds(5));
}

}  // namespace

Signals::Signals(const Gpu& gpu, std::size_t count, char* pinned) : cuda_(gpu.cuda) {
  void* memory = pinned;
  if (pinned == nullptr) cuda_.host_allocate(&memory, footprint(count), mapped);
  cuda_.host_pointer(&device_, memory, 0);
  flags_ = static_cast<Flag*>(memory);
  for (std::size_t i = 0; pinned == nullptr && i < count; ++i) new (flags_ + i) Flag{{0}};
  // Some drivers have the functions and refuse them (virtual GPUs): one is tried.
  in_stream_ = cuda_.stream_write && cuda_.stream_wait && cuda_.stream_wait.code(nullptr, device_, 0, greater_or_equal) == 0;
}

void Signals::post(Cuda::Stream stream, std::size_t flag, std::uint32_t value) {
  if (in_stream_) return cuda_.stream_write(stream, on_device(flag), value, 0);
  auto errand = std::make_unique<Errand>(Errand{at(flag), value});
  cuda_.launch_host(stream, do_post, errand.get());
  errand.release();  // do_post's now
}

void Signals::hold(Cuda::Stream stream, std::size_t flag, std::uint32_t value) {
  if (in_stream_) return cuda_.stream_wait(stream, on_device(flag), value, greater_or_equal);
  auto errand = std::make_unique<Errand>(Errand{at(flag), value});
  cuda_.launch_host(stream, do_hold, errand.get());
  errand.release();
}

}  // namespace dl
