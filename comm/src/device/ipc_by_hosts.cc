#include "device/ipc_by_hosts.h"

#include "wire.h"

namespace dl {
namespace {

constexpr unsigned no_timing = 2;  // CU_EVENT_DISABLE_TIMING

Cuda::Pointer pointer(const char* at) { return static_cast<Cuda::Pointer>(reinterpret_cast<std::uintptr_t>(at)); }

// The GPU's memory for what arrives.
class OnGpu : public Scratch {
 public:
  explicit OnGpu(Cuda::Pointer at) : at_(at) {}
  char* at_least(std::size_t) override { return reinterpret_cast<char*>(static_cast<std::uintptr_t>(at_)); }

 private:
  Cuda::Pointer at_;
};

}  // namespace

IpcByHosts::IpcByHosts(const Gpu& gpu, std::vector<Cuda::Pointer> scratch, int rank, Cuda::Pointer arrived)
    : IpcTeam(gpu, std::move(scratch), rank), arrived_(arrived) {
  cuda_.event_create(&end_, no_timing);
}

void IpcByHosts::finish(Cuda::Stream stream) {
  cuda_.event_record(end_, stream);
  wait_for(cuda_, end_);
}

void IpcByHosts::meet(Cuda::Stream stream, Step, std::uint32_t) {
  finish(stream);
  channel_->meet();
}

void IpcByHosts::sum_over_nodes(Cuda::Stream stream, const Buffer& slice) {
  const bool wide = slice.dtype == Dtype::float64;
  const Add add = [&](char* acc, const char* more, std::size_t n) {
    if (n == 0) return;
    sum(stream, {pointer(acc), pointer(more)}, pointer(acc), n, wide);
    finish(stream);
  };
  finish(stream);
  OnGpu arrived(arrived_);
  allreduce_untouched(channel_->peers(), width(slice.dtype), add, slice.data, slice.count, arrived);
}

}  // namespace dl
