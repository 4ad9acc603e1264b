// Compiles only if dl_comm's declarations of CUDA's functions agree with CUDA's own, and if its constants are the same.
#include <cuda.h>

#include "agreement.h"
#include "device/cuda.h"

#define CHECK(mine, theirs) AGREE(dl::Cuda, mine, theirs)

CHECK(init, cuInit);
CHECK(error_name, cuGetErrorName);
CHECK(error_text, cuGetErrorString);
CHECK(device_get, cuDeviceGet);
CHECK(device_uuid, cuDeviceGetUuid);
CHECK(device_uuid_old, cuDeviceGetUuid);
CHECK(retain_context, cuDevicePrimaryCtxRetain);
CHECK(push_context, cuCtxPushCurrent);
CHECK(pop_context, cuCtxPopCurrent);
CHECK(pointer_attribute, cuPointerGetAttribute);
CHECK(stream_create, cuStreamCreate);
CHECK(stream_wait_event, cuStreamWaitEvent);
CHECK(stream_write, cuStreamWriteValue32);
CHECK(stream_wait, cuStreamWaitValue32);
CHECK(stream_capturing, cuStreamIsCapturing);
CHECK(launch_host, cuLaunchHostFunc);
CHECK(event_create, cuEventCreate);
CHECK(event_record, cuEventRecord);
CHECK(event_query, cuEventQuery);
CHECK(event_elapsed, cuEventElapsedTime);
CHECK(host_allocate, cuMemHostAlloc);
CHECK(host_register, cuMemHostRegister);
CHECK(host_pointer, cuMemHostGetDevicePointer);
CHECK(copy_to_host, cuMemcpyDtoHAsync);
CHECK(copy_to_device, cuMemcpyHtoDAsync);
CHECK(copy_on_device, cuMemcpyDtoDAsync);
CHECK(device_allocate, cuMemAlloc);
CHECK(ipc_handle, cuIpcGetMemHandle);
CHECK(ipc_open, cuIpcOpenMemHandle);
CHECK(load_module, cuModuleLoadData);
CHECK(kernel_of, cuModuleGetFunction);
CHECK(launch, cuLaunchKernel);

static_assert(CU_STREAM_NON_BLOCKING == 1 && CU_EVENT_DISABLE_TIMING == 2 && CU_STREAM_WAIT_VALUE_GEQ == 0);
static_assert((CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP) == 3 && CU_STREAM_WRITE_VALUE_DEFAULT == 0);
static_assert((CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP) == 3);
static_assert(CU_POINTER_ATTRIBUTE_MEMORY_TYPE == 2 && CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL == 9 && CU_MEMORYTYPE_DEVICE == 2);
static_assert(sizeof(CUuuid) == sizeof(dl::Cuda::Uuid) && sizeof(CUdeviceptr) == sizeof(dl::Cuda::Pointer));
static_assert(sizeof(CUipcMemHandle) == sizeof(dl::Cuda::IpcHandle) && CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS == 1);
static_assert(CUDA_ERROR_NOT_READY == dl::Cuda::not_ready && CU_STREAM_CAPTURE_STATUS_NONE == 0);
static_assert(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT == dl::Cuda::capture_elsewhere);
