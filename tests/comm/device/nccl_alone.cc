// One rank and NCCL on one GPU: `nccl_alone CUDA NCCL PREFIX` joins a communicator of size 1 as a GpuTeam does, and sums on it.
#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "device/blocks.h"
#include "device/nccl.h"
#include "error.h"

namespace {

constexpr std::size_t count = 100'003;
constexpr unsigned pinned = 1, non_blocking = 1, no_timing = 2;

char* host(dl::Cuda::Pointer address) { return reinterpret_cast<char*>(static_cast<std::uintptr_t>(address)); }

// Whether no group is left open where an operation is refused; the fake refuses it when told to, and counts its groups.
bool closes_groups(dl::NcclTeam& team, const char* library, dl::Cuda::Stream stream, const dl::Flat& flat) {
  void* const fake = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
  const auto fail = fake == nullptr ? nullptr : reinterpret_cast<void (*)(const char*, int, int)>(dlsym(fake, "fake_fail"));
  if (fail == nullptr) return true;
  fail("ncclAllReduce", 1, 2);
  try {
    team.all_reduce(stream, flat, dl::Op::sum);
    return false;
  } catch (const dl::CommError&) {
    return reinterpret_cast<int (*)()>(dlsym(fake, "fake_open_groups"))() == 0;
  }
}

int run(const std::string& cuda_library, const std::string& nccl_library, const std::string& prefix) {
  const dl::Cuda& cuda = dl::Cuda::load(cuda_library);
  int device = 0;
  dl::Cuda::Context context;
  cuda.device_get(&device, 0);
  cuda.retain_context(&context, device);
  cuda.push_context(context);
  dl::Cuda::Pointer array = 0, scratch = 0;
  const dl::Settings settings;
  cuda.device_allocate(&array, count * sizeof(float));
  cuda.device_allocate(&scratch, dl::Blocks::footprint(settings));
  const dl::Gpu gpu = dl::gpu_of(cuda, host(array));

  const dl::Nccl& nccl = dl::Nccl::load(nccl_library, prefix);
  dl::Nccl::Id id;
  nccl.unique_id(&id);
  dl::NcclTeam team(nccl, id, 0, 1, 60);
  for (int look = 0; look < 60'000 && !team.joined(); ++look) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (!team.joined()) return std::puts("NCCL has not joined after 60 s"), 1;

  void* memory = nullptr;
  cuda.host_allocate(&memory, count * sizeof(float), pinned);
  auto* const numbers = static_cast<float*>(memory);
  for (std::size_t i = 0; i < count; ++i) numbers[i] = static_cast<float>(i);
  dl::Cuda::Stream stream = nullptr;
  dl::Cuda::Event end = nullptr;
  cuda.stream_create(&stream, non_blocking);
  cuda.event_create(&end, no_timing);
  cuda.copy_to_device(array, numbers, count * sizeof(float), stream);
  const dl::Flat flat({{host(array), count, dl::Dtype::float32}});
  team.all_reduce(stream, flat, dl::Op::sum);
  team.broadcast(stream, flat, 0);
  dl::Blocks blocks(gpu, settings, team, scratch);
  for (const dl::Blocks::Block& block : blocks.cut(flat, 0)) {
    blocks.sum(stream, block);
    blocks.finish(stream, block, 4.0);
  }
  cuda.copy_to_host(numbers, array, count * sizeof(float), stream);
  cuda.event_record(end, stream);
  dl::wait_for(cuda, end);
  for (std::size_t i = 0; i < count; ++i)
    if (numbers[i] != static_cast<float>(i) / 4) return std::printf("number %zu is %g\n", i, static_cast<double>(numbers[i])), 1;
  if (!closes_groups(team, nccl_library.c_str(), stream, flat)) return std::puts("a group is left open"), 1;
  return std::printf("right by NCCL %d\n", nccl.version()), 0;
}

}  // namespace

int main(int, char** words) {
  try {
    return run(words[1], words[2], words[3]);
  } catch (const dl::CommError& error) {
    return std::puts(error.what()), 1;
  }
}
