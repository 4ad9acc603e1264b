#include "device/pipeline.h"

#include <chrono>
#include <thread>

#include "error.h"

namespace dl {
namespace {

constexpr std::size_t slots_of_a_stream = 4;  // chunks on their way at once
constexpr unsigned non_blocking = 1, no_timing = 2;  // CU_STREAM_NON_BLOCKING, CU_EVENT_DISABLE_TIMING
constexpr int spins = 2000;                   // looks at a flag before the thread begins to sleep between them

std::size_t slots(const Settings& settings) { return slots_of_a_stream * static_cast<std::size_t>(settings.num_cuda_streams); }

}  // namespace

std::size_t Pipeline::footprint(const Settings& settings) { return slots(settings) * chunk_bytes(settings); }

Pipeline::Pipeline(const Gpu& gpu, const Settings& settings, char* pinned, std::size_t offset)
    : cuda_(gpu.cuda),
      chunk_(chunk_bytes(settings)),
      slots_(slots(settings)),
      memory_(pinned + offset),
      signals_(gpu, 2 * slots_),
      copier_(gpu, pinned),
      // A function of the host that waits keeps the others waiting: then one pair of streams, in a fixed order.
      pairs_(signals_.in_stream() ? static_cast<std::size_t>(settings.num_cuda_streams) : 1),
      free_(slots_),
      copied_(signals_.in_stream() ? 0 : slots_) {
  for (StreamPair& pair : pairs_) {
    cuda_.stream_create(&pair.out, non_blocking);
    cuda_.stream_create(&pair.back, non_blocking);
    cuda_.event_create(&pair.done, no_timing);
    pair.used = false;
  }
  for (auto* events : {&free_, &copied_})
    for (Cuda::Event& event : *events) cuda_.event_create(&event, no_timing);
}

void Pipeline::begin_after(Cuda::Event event) {
  for (StreamPair& pair : pairs_) cuda_.stream_wait_event(pair.out, event, 0);
}

void Pipeline::send(const Flat& flat, std::size_t first, std::size_t n) {
  const std::uint32_t number = ++sent_;
  const std::size_t slot = slot_of(number);
  StreamPair& pair = pairs_[slot % pairs_.size()];  // a slot always belongs to the same streams
  pair.used = true;
  cuda_.stream_wait_event(pair.out, free_[slot], 0);  // one that was never recorded keeps nobody waiting
  copier_.gather(pair.out, flat, first, n, at(number));
  signals_.post(pair.out, 2 * slot, number);
  if (!copied_.empty()) {
    cuda_.event_record(copied_[slot], pair.out);
    cuda_.stream_wait_event(pair.back, copied_[slot], 0);
  }
  signals_.hold(pair.back, 2 * slot + 1, number);
  copier_.scatter(pair.back, flat, first, n, at(number));
  cuda_.event_record(free_[slot], pair.back);
}

void Pipeline::finish_before(Cuda::Stream stream) {
  for (StreamPair& pair : pairs_) {
    if (!pair.used) continue;
    cuda_.event_record(pair.done, pair.back);
    cuda_.stream_wait_event(stream, pair.done, 0);
    pair.used = false;
  }
}

char* Pipeline::await(std::uint32_t number) {
  const std::size_t flag = 2 * slot_of(number);
  for (int look = 0; !signals_.reached(flag, number); ++look) {
    if (abandoned_) throw CommError(why_);
    if (look < spins) std::this_thread::yield();
    else std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return at(number);
}

void Pipeline::give_back(std::uint32_t number) { signals_.set(2 * slot_of(number) + 1, number); }

void Pipeline::abandon(const std::string& why) {
  if (abandoned_) return;
  why_ = why;
  abandoned_ = true;
}

void Pipeline::give_up(std::uint32_t first, std::uint32_t last) {
  for (std::uint32_t number = first; number != last + 1; ++number) {
    if (signals_.reached(2 * slot_of(number) + 1, number)) continue;
    await(number);  // else what an earlier chunk left would be copied
    give_back(number);
  }
}

}  // namespace dl
