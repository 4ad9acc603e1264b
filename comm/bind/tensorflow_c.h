// TensorFlow's C interface for ops and kernels: the functions that the op needs, declared by hand and looked up in the
// libtensorflow_framework that the process has loaded. Building needs no TensorFlow, and one binary serves all versions.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

extern "C" {
struct TF_Status;
struct TF_Tensor;
struct TF_OpDefinitionBuilder;
struct TF_ShapeInferenceContext;
struct TF_ShapeHandle;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_AsyncOpKernelDoneCallback;
struct TF_StringView {
  const char* data;
  std::size_t len;
};
}

namespace {

void* const library = dlopen("libtensorflow_framework.so.2", RTLD_NOLOAD | RTLD_NOW);
std::string loading_error = library == nullptr ? "libtensorflow_framework.so.2 is not loaded in this process" : "";

// A function of the library, as whatever type it is declared with.
struct Symbol {
  void* address;
  template <typename F>
  operator F*() const {
    F* function;
    std::memcpy(&function, &address, sizeof function);
    return function;
  }
};

Symbol symbol(const char* name) {
  void* address = library != nullptr ? dlsym(library, name) : nullptr;
  if (address == nullptr && loading_error.empty()) loading_error = std::string("TensorFlow lacks ") + name;
  return {address};
}

// The functions, by their own names.
const struct TensorFlow {
  TF_Status* (*TF_NewStatus)() = symbol("TF_NewStatus");
  void (*TF_DeleteStatus)(TF_Status*) = symbol("TF_DeleteStatus");
  void (*TF_SetStatus)(TF_Status*, int, const char*) = symbol("TF_SetStatus");
  int (*TF_GetCode)(const TF_Status*) = symbol("TF_GetCode");
  int (*TF_TensorType)(const TF_Tensor*) = symbol("TF_TensorType");
  int (*TF_NumDims)(const TF_Tensor*) = symbol("TF_NumDims");
  std::int64_t (*TF_Dim)(const TF_Tensor*, int) = symbol("TF_Dim");
  void* (*TF_TensorData)(const TF_Tensor*) = symbol("TF_TensorData");
  std::size_t (*TF_TensorByteSize)(const TF_Tensor*) = symbol("TF_TensorByteSize");
  void (*TF_DeleteTensor)(TF_Tensor*) = symbol("TF_DeleteTensor");
  TF_OpDefinitionBuilder* (*TF_NewOpDefinitionBuilder)(const char*) = symbol("TF_NewOpDefinitionBuilder");
  void (*TF_RegisterOpDefinition)(TF_OpDefinitionBuilder*, TF_Status*) = symbol("TF_RegisterOpDefinition");
  void (*TF_OpDefinitionBuilderAddAttr)(TF_OpDefinitionBuilder*, const char*) = symbol("TF_OpDefinitionBuilderAddAttr");
  void (*TF_OpDefinitionBuilderAddInput)(TF_OpDefinitionBuilder*, const char*)
      = symbol("TF_OpDefinitionBuilderAddInput");
  void (*TF_OpDefinitionBuilderAddOutput)(TF_OpDefinitionBuilder*, const char*)
      = symbol("TF_OpDefinitionBuilderAddOutput");
  void (*TF_OpDefinitionBuilderSetIsStateful)(TF_OpDefinitionBuilder*, bool)
      = symbol("TF_OpDefinitionBuilderSetIsStateful");
  void (*TF_OpDefinitionBuilderSetShapeInferenceFunction)(TF_OpDefinitionBuilder*,
                                                          void (*)(TF_ShapeInferenceContext*, TF_Status*))
      = symbol("TF_OpDefinitionBuilderSetShapeInferenceFunction");
  std::int64_t (*TF_ShapeInferenceContextNumInputs)(TF_ShapeInferenceContext*)
      = symbol("TF_ShapeInferenceContextNumInputs");
  TF_ShapeHandle* (*TF_NewShapeHandle)() = symbol("TF_NewShapeHandle");
  void (*TF_DeleteShapeHandle)(TF_ShapeHandle*) = symbol("TF_DeleteShapeHandle");
  void (*TF_ShapeInferenceContextGetInput)(TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*)
      = symbol("TF_ShapeInferenceContextGetInput");
  void (*TF_ShapeInferenceContextSetOutput)(TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*)
      = symbol("TF_ShapeInferenceContextSetOutput");
  TF_ShapeHandle* (*TF_ShapeInferenceContextScalar)(TF_ShapeInferenceContext*)
      = symbol("TF_ShapeInferenceContextScalar");
  TF_KernelBuilder* (*TF_NewAsyncKernelBuilder)(const char*, const char*, void* (*)(TF_OpKernelConstruction*),
                                                void (*)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*),
                                                void (*)(void*)) = symbol("TF_NewAsyncKernelBuilder");
  void (*TF_KernelBuilder_HostMemory)(TF_KernelBuilder*, const char*) = symbol("TF_KernelBuilder_HostMemory");
  void (*TF_RegisterKernelBuilder)(const char*, TF_KernelBuilder*, TF_Status*) = symbol("TF_RegisterKernelBuilder");
  void (*TF_OpKernelConstruction_GetAttrSize)(TF_OpKernelConstruction*, const char*, std::int32_t*, std::int32_t*,
                                              TF_Status*) = symbol("TF_OpKernelConstruction_GetAttrSize");
  void (*TF_OpKernelConstruction_GetAttrString)(TF_OpKernelConstruction*, const char*, char*, std::size_t, TF_Status*)
      = symbol("TF_OpKernelConstruction_GetAttrString");
  void (*TF_OpKernelConstruction_GetAttrInt32)(TF_OpKernelConstruction*, const char*, std::int32_t*, TF_Status*)
      = symbol("TF_OpKernelConstruction_GetAttrInt32");
  void (*TF_OpKernelConstruction_GetAttrFloat)(TF_OpKernelConstruction*, const char*, float*, TF_Status*)
      = symbol("TF_OpKernelConstruction_GetAttrFloat");
  void (*TF_OpKernelConstruction_GetAttrBool)(TF_OpKernelConstruction*, const char*, unsigned char*, TF_Status*)
      = symbol("TF_OpKernelConstruction_GetAttrBool");
  TF_StringView (*TF_OpKernelConstruction_GetName)(TF_OpKernelConstruction*) = symbol("TF_OpKernelConstruction_GetName");
  void (*TF_OpKernelConstruction_Failure)(TF_OpKernelConstruction*, TF_Status*)
      = symbol("TF_OpKernelConstruction_Failure");
  int (*TF_NumInputs)(TF_OpKernelContext*) = symbol("TF_NumInputs");
  void (*TF_GetInput)(TF_OpKernelContext*, int, TF_Tensor**, TF_Status*) = symbol("TF_GetInput");
  TF_Tensor* (*TF_ForwardInputOrAllocateOutput)(TF_OpKernelContext*, const int*, int, int, const std::int64_t*, int, int*,
                                                TF_Status*) = symbol("TF_ForwardInputOrAllocateOutput");
  TF_Tensor* (*TF_AllocateOutput)(TF_OpKernelContext*, int, int, const std::int64_t*, int, std::size_t, TF_Status*)
      = symbol("TF_AllocateOutput");
  void (*TF_OpKernelContext_Failure)(TF_OpKernelContext*, TF_Status*) = symbol("TF_OpKernelContext_Failure");
} tf;

}  // namespace
