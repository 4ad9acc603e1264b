// CUDA's driver: the functions that dl_comm uses, under the names of their documentation, with declarations of our own.
//
// A call throws CommError where CUDA returns an error. The calls need a current context (Current), except those that
// ask for devices and pointers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "device/loaded.h"

namespace dl {

class Cuda {
 public:
  using Pointer = unsigned long long;  // an address on a device
  using Context = struct CudaContext*;
  using Stream = struct CudaStream*;  // nullptr: the default stream of the current context
  using Event = struct CudaEvent*;
  using Module = struct CudaModule*;
  using Kernel = struct CudaKernel*;
  struct Uuid {
    unsigned char bytes[16];
  };
  struct IpcHandle {  // a piece of device memory, for other processes of the node
    char bytes[64];
  };

  // The one driver of this process, initialised: `named` at the first call, or libcuda.so.1. Throws CommError that says
  // what is missing.
  static const Cuda& load(const std::string& named);
  explicit Cuda(const std::string& named);

  const Loaded& loaded() const { return loaded_; }
  std::string explained(int code) const;

 private:
  Loaded loaded_;

  template <class... Arguments>
  using F = Function<Cuda, Arguments...>;

 public:
  F<unsigned> init{*this, "cuInit"};
  F<int, const char**> error_name{*this, "cuGetErrorName"};
  F<int, const char**> error_text{*this, "cuGetErrorString"};
  F<int*, int> device_get{*this, "cuDeviceGet"};
  F<Uuid*, int> device_uuid{*this, "cuDeviceGetUuid_v2", Need::optional};  // from CUDA 11.4 on: tells MIG parts apart
  F<Uuid*, int> device_uuid_old{*this, "cuDeviceGetUuid"};
  F<Context*, int> retain_context{*this, "cuDevicePrimaryCtxRetain"};
  F<Context> push_context{*this, "cuCtxPushCurrent_v2"};
  F<Context*> pop_context{*this, "cuCtxPopCurrent_v2"};
  F<void*, int, Pointer> pointer_attribute{*this, "cuPointerGetAttribute"};

  F<Stream*, unsigned> stream_create{*this, "cuStreamCreate"};
  F<Stream, Event, unsigned> stream_wait_event{*this, "cuStreamWaitEvent"};
  F<Stream, Pointer, std::uint32_t, unsigned> stream_write{*this, "cuStreamWriteValue32_v2", Need::optional};  // 11.7
  F<Stream, Pointer, std::uint32_t, unsigned> stream_wait{*this, "cuStreamWaitValue32_v2", Need::optional};
  F<Stream, int*> stream_capturing{*this, "cuStreamIsCapturing"};  // 0: it is not
  static constexpr int capture_elsewhere = 906;                   // CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
  F<Stream, void (*)(void*), void*> launch_host{*this, "cuLaunchHostFunc"};
  F<Event*, unsigned> event_create{*this, "cuEventCreate"};
  F<Event, Stream> event_record{*this, "cuEventRecord"};
  F<Event> event_query{*this, "cuEventQuery"};  // 0, or not_ready
  static constexpr int not_ready = 600;         // CUDA_ERROR_NOT_READY
  F<float*, Event, Event> event_elapsed{*this, "cuEventElapsedTime"};  // milliseconds; of events that are timed

  F<void**, std::size_t, unsigned> host_allocate{*this, "cuMemHostAlloc"};
  F<void*, std::size_t, unsigned> host_register{*this, "cuMemHostRegister_v2"};
  F<Pointer*, void*, unsigned> host_pointer{*this, "cuMemHostGetDevicePointer_v2"};
  F<void*, Pointer, std::size_t, Stream> copy_to_host{*this, "cuMemcpyDtoHAsync_v2"};
  F<Pointer, const void*, std::size_t, Stream> copy_to_device{*this, "cuMemcpyHtoDAsync_v2"};
  F<Pointer, Pointer, std::size_t, Stream> copy_on_device{*this, "cuMemcpyDtoDAsync_v2"};
  F<Pointer*, std::size_t> device_allocate{*this, "cuMemAlloc_v2"};
  F<IpcHandle*, Pointer> ipc_handle{*this, "cuIpcGetMemHandle"};
  F<Pointer*, IpcHandle, unsigned> ipc_open{*this, "cuIpcOpenMemHandle_v2", Need::optional};  // 11.0

  F<Module*, const void*> load_module{*this, "cuModuleLoadData"};
  F<Kernel*, Module, const char*> kernel_of{*this, "cuModuleGetFunction"};
  F<Kernel, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void**, void**> launch{
      *this, "cuLaunchKernel"};
};

// A GPU as this process uses it: the context is the one that frameworks use, too.
struct Gpu {
  const Cuda& cuda;
  int ordinal;
  Cuda::Context context;
  std::string uuid;  // the same in every process
};

// The number of the GPU that holds `address`. Throws CommError if none does.
int device_of(const Cuda& cuda, const void* address);

// That GPU.
Gpu gpu_of(const Cuda& cuda, const void* address);

// Throws CommError if the stream is being captured into a graph: its replays would reduce nothing, and wait for nobody.
void refuse_capture(const Cuda& cuda, Cuda::Stream stream);

// Returns once the GPU has come to the event. Its context is current.
void wait_for(const Cuda& cuda, Cuda::Event event);

// Makes the GPU's context current in this thread for as long as it lives.
class Current {
 public:
  explicit Current(const Gpu& gpu) : cuda_(gpu.cuda) { cuda_.push_context(gpu.context); }
  ~Current() {
    Cuda::Context gone;
    cuda_.pop_context.code(&gone);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const Cuda& cuda_;
};

}  // namespace dl
