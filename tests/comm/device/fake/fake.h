// A CUDA driver and an NCCL for tests without a GPU. Device memory is the host's, under addresses that the host cannot
// read; streams are threads that run what was enqueued later, in order, after random delays.
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct Stream* CUstream;
typedef unsigned long long CUdeviceptr;

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, NOT_READY = 600, NOT_SUPPORTED = 801 };

// Runs work(data) when the stream comes to it, and then frees data.
void fake_enqueue(CUstream stream, void (*work)(void*), void* data);
// The host's address of [address, address + bytes) on the device; ends the process if it is not in one allocation.
char* fake_on_host(CUdeviceptr address, size_t bytes, const char* who);
// Counts the call; the error that it shall return, if any, else 0. `needs_context`: 201 without a current one.
int fake_called(const char* function, int needs_context);

// Kernels (ptx.c): the one of this name in a text, the bytes that its parameters take, and a launch.
struct Program;
struct Program* fake_program(const char* text, const char* name);
size_t fake_parameters(const struct Program* program);
void fake_take_parameters(const struct Program* program, char* to, void** from);
void fake_run(const struct Program* program, char* arguments, unsigned x, unsigned y, unsigned threads);
