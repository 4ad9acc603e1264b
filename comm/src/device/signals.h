// Flags in the host's memory through which a GPU's stream and a thread of the host tell each other how far they are.
//
// The host's threads make no call of CUDA to wait or to tell: they read and write memory. So a thread of the framework
// that sits in a call of CUDA (a cudaFree that waits for the whole device) never keeps them from it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "device/cuda.h"

namespace dl {

class Signals {
  struct alignas(64) Flag {
    std::atomic<std::uint32_t> value;
  };

 public:
  // `count` flags, all 0, in memory of this process, or in `pinned` memory, zeroed and shared with others. The GPU's
  // context is current.
  Signals(const Gpu& gpu, std::size_t count, char* pinned = nullptr);
  static std::size_t footprint(std::size_t count) { return count * sizeof(Flag); }

  // When the stream comes here it sets the flag to `value` / it waits until the flag is `value` or beyond (modulo 2^32).
  void post(Cuda::Stream stream, std::size_t flag, std::uint32_t value);
  void hold(Cuda::Stream stream, std::size_t flag, std::uint32_t value);

  // The host's side.
  void set(std::size_t flag, std::uint32_t value) { at(flag).store(value, std::memory_order_release); }
  bool reached(std::size_t flag, std::uint32_t value) const {
    return static_cast<std::int32_t>(at(flag).load(std::memory_order_acquire) - value) >= 0;
  }

  // Whether the stream itself reads and writes the flags; else a function of the host does that in its place.
  bool in_stream() const { return in_stream_; }

 private:
  std::atomic<std::uint32_t>& at(std::size_t flag) const { return flags_[flag].value; }
  Cuda::Pointer on_device(std::size_t flag) const { return device_ + flag * sizeof(Flag); }

  const Cuda& cuda_;
  Flag* flags_ = nullptr;  // as long as the process lives
  Cuda::Pointer device_ = 0;
  bool in_stream_ = false;
};

}  // namespace dl
