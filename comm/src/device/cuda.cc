#include "device/cuda.h"

#include <chrono>
#include <mutex>
#include <thread>

#include "error.h"

namespace dl {
namespace {

constexpr int attribute_memory_type = 2, attribute_device = 9;  // CU_POINTER_ATTRIBUTE_...
constexpr unsigned memory_of_device = 2;                        // CU_MEMORYTYPE_DEVICE
constexpr int spins = 2000;  // looks at an event before the thread begins to sleep between them

}  // namespace

Cuda::Cuda(const std::string& named)
    : loaded_("CUDA's driver", {named.empty() ? "libcuda.so.1" : named}, "DL_COMM_CUDA_LIBRARY",
              "that of CUDA 10.0 (410)") {
  init(0);
}

const Cuda& Cuda::load(const std::string& named) {
  static std::mutex guard;
  static const Cuda* one = nullptr;  // never destroyed: the driver cannot be unloaded
  const std::lock_guard<std::mutex> lock(guard);
  if (one == nullptr) one = new Cuda(named);
  return *one;
}

std::string Cuda::explained(int code) const {
  const char *name = nullptr, *text = nullptr;
  error_name.code(code, &name);
  error_text.code(code, &text);
  if (name == nullptr) return "error " + std::to_string(code);
  return std::string(name) + (text == nullptr ? "" : " (" + std::string(text) + ")");
}

int device_of(const Cuda& cuda, const void* address) {
  const auto pointer = static_cast<Cuda::Pointer>(reinterpret_cast<std::uintptr_t>(address));
  unsigned type = 0;
  int ordinal = 0;
  if (cuda.pointer_attribute.code(&type, attribute_memory_type, pointer) != 0 || type != memory_of_device)
    throw CommError("an array that was said to lie on a GPU does not: CUDA does not know its address");
  cuda.pointer_attribute(&ordinal, attribute_device, pointer);
  return ordinal;
}

Gpu gpu_of(const Cuda& cuda, const void* address) {
  const int ordinal = device_of(cuda, address);
  int device = 0;
  cuda.device_get(&device, ordinal);
  Gpu gpu{cuda, ordinal, nullptr, ""};
  cuda.retain_context(&gpu.context, device);
  Cuda::Uuid uuid;
  if (cuda.device_uuid) cuda.device_uuid(&uuid, device);
  else cuda.device_uuid_old(&uuid, device);
  for (const unsigned char byte : uuid.bytes)
    for (const int half : {byte >> 4, byte & 15}) gpu.uuid += "0123456789abcdef"[half];
  return gpu;
}

void refuse_capture(const Cuda& cuda, Cuda::Stream stream) {
  int capturing = 0;
  const int code = cuda.stream_capturing.code(stream, &capturing);
  if (code == Cuda::capture_elsewhere || (code == 0 && capturing != 0))
    throw CommError("the stream is being captured into a CUDA graph, whose replays would reduce nothing",
                    "let the graph end before dl_comm is called, and begin another one after it");
}

void wait_for(const Cuda& cuda, Cuda::Event event) {
  for (int look = 0; cuda.event_query.allowing(Cuda::not_ready, event) != 0; ++look) {
    if (look < spins) std::this_thread::yield();
    else std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace dl
