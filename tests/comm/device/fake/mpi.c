// An MPI that takes memory of the fake driver's GPU, as some take memory of real ones: a layer over an MPI of this machine.
#define _GNU_SOURCE
#include "fake.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

// Handles are ints or pointers, by family; either passes through a long.
int PMPI_Isend(const void* data, int count, long type, int to, int tag, long comm, void* request);
int PMPI_Irecv(void* data, int count, long type, int from, int tag, long comm, void* request);
int PMPI_Get_library_version(char* text, int* length);

static int is_set(const char* variable) { const char* text = getenv(variable); return text && *text; }

// Where the host finds an address of the device; those of the host lie below.
static char* found(const void* data, int bytes, const char* function) {
  static int (*called)(const char*, int);
  static char* (*on_host)(CUdeviceptr, size_t, const char*);
  if ((uintptr_t)data < 1ull << 47) return NULL;
  if (!on_host) {
    void* const driver = dlopen(getenv("DL_COMM_CUDA_LIBRARY"), RTLD_NOW);
    called = (int (*)(const char*, int))dlsym(driver, "fake_called");
    on_host = (char* (*)(CUdeviceptr, size_t, const char*))dlsym(driver, "fake_on_host");
  }
  return called(function, 1) ? NULL : on_host((CUdeviceptr)(uintptr_t)data, (size_t)bytes, function);
}

int MPIX_Query_cuda_support(void) { return !is_set("FAKE_MPI_CRAY"); }

int MPI_Get_library_version(char* text, int* length) {
  if (!is_set("FAKE_MPI_CRAY")) return PMPI_Get_library_version(text, length);
  *length = (int)strlen(strcpy(text, "MPI VERSION    : CRAY MPICH version 8.1.29"));
  return 0;
}

int MPI_Isend(const void* data, int count, long type, int to, int tag, long comm, void* request) {
  char* const real = found(data, count, "MPI_Isend_of_a_GPU");
  if (real && is_set("FAKE_MPI_WRONG")) *(float*)real += 1;
  if (real && is_set("FAKE_MPI_SILENT")) tag += 30000;  // nobody receives it
  return PMPI_Isend(real ? real : data, count, type, to, tag, comm, request);
}

int MPI_Irecv(void* data, int count, long type, int from, int tag, long comm, void* request) {
  char* const real = found(data, count, "MPI_Irecv_of_a_GPU");
  return PMPI_Irecv(real ? real : data, count, type, from, tag, comm, request);
}
