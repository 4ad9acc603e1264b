#define _GNU_SOURCE
#include "fake.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

// One lock for everything: this is for being right, not fast. The condition tells that something has happened.
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t happened = PTHREAD_COND_INITIALIZER;

static long setting(const char* name, long otherwise) {
  const char* text = getenv(name);
  return text && *text ? atol(text) : otherwise;
}

static void pause_for(long us) {
  const struct timespec time = {us / 1000000, us % 1000000 * 1000};
  nanosleep(&time, NULL);
}

static void die(const char* who, const char* what, CUdeviceptr address, size_t bytes) {
  fprintf(stderr, "fake CUDA: %s: %s: %zu bytes at %llx\n", who, what, bytes, address);
  abort();
}

// ---- calls: their log, the errors asked for, the threads they came from ----

static char call_log[1 << 20];
static size_t logged;
static struct { char name[64]; int nth, code; } failure;
static pthread_t callers[64];
static int n_callers;
static _Thread_local int depth;  // of the stack of current contexts

int fake_called(const char* function, int needs_context) {
  int code = needs_context && depth == 0 ? INVALID_CONTEXT : 0;
  pthread_mutex_lock(&guard);
  const size_t length = strlen(function);
  if (logged + length + 2 < sizeof call_log) {
    memcpy(call_log + logged, function, length);
    logged += length;
    call_log[logged++] = '\n';
  }
  int known = 0;
  for (int i = 0; i < n_callers; ++i) known |= pthread_equal(callers[i], pthread_self());
  if (!known && n_callers < 64) callers[n_callers++] = pthread_self();
  if (strcmp(function, failure.name) == 0 && --failure.nth == 0) code = failure.code;
  pthread_mutex_unlock(&guard);
  return code;
}

const char* fake_log(void) { return call_log; }
void fake_forget(void) { pthread_mutex_lock(&guard); memset(call_log, 0, logged); logged = 0; n_callers = 0; pthread_mutex_unlock(&guard); }
int fake_threads(void) { return n_callers; }  // that have called since fake_forget
void fake_fail(const char* function, int nth, int code) {
  pthread_mutex_lock(&guard);
  snprintf(failure.name, sizeof failure.name, "%s", function);
  failure.nth = nth;
  failure.code = code;
  pthread_mutex_unlock(&guard);
}

// ---- memory ----

enum Kind { none, on_device, pinned };
// With FAKE_CUDA_OWNS_ALL all memory that is not pinned counts as the device's, so that tensors of the CPU can play it.
static struct { enum Kind kind; CUdeviceptr start; size_t bytes; void* real; } memory[4096];
static int n_memory;

static unsigned changes;  // of the list
typedef struct { CUdeviceptr start, end; char* real; unsigned changes; } Region;

static int owns_all(void) {
  static int known = -1;
  const int before = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (before >= 0) return before;
  const int found = (int)setting("FAKE_CUDA_OWNS_ALL", 0);
  __atomic_store_n(&known, found, __ATOMIC_RELAXED);
  return found;
}
static CUdeviceptr bias(void) { return owns_all() ? 0 : 1ull << 46; }

static void add(enum Kind kind, CUdeviceptr start, size_t bytes, void* real) {
  pthread_mutex_lock(&guard);
  if (n_memory == 4096) die("memory", "too many allocations", start, bytes);
  memory[n_memory].kind = kind;
  memory[n_memory].start = start;
  memory[n_memory].real = real;
  memory[n_memory++].bytes = bytes;
  pthread_mutex_unlock(&guard);
}

static int place_of(CUdeviceptr address, size_t bytes) {
  int place = -1;
  pthread_mutex_lock(&guard);
  for (int i = 0; i < n_memory; ++i)
    if (memory[i].kind && address >= memory[i].start && address + bytes <= memory[i].start + memory[i].bytes) place = i;
  pthread_mutex_unlock(&guard);
  return place;
}

static enum Kind kind_of(CUdeviceptr address, size_t bytes) {
  const int place = place_of(address, bytes);
  return place >= 0 ? memory[place].kind : owns_all() ? on_device : none;
}

static int drop(CUdeviceptr start) {
  int code = INVALID_VALUE;
  pthread_mutex_lock(&guard);
  for (int i = 0; i < n_memory; ++i)
    if (memory[i].start == start && memory[i].kind != none) memory[i].kind = none, code = SUCCESS;
  __atomic_add_fetch(&changes, 1, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&guard);
  return code;
}

// A kernel asks for every number: the allocations of the last ones are looked at first.
char* fake_on_host(CUdeviceptr address, size_t bytes, const char* who) {
  static _Thread_local Region last[4];
  static _Thread_local unsigned turn;
  const unsigned now = __atomic_load_n(&changes, __ATOMIC_ACQUIRE);
  for (int i = 0; i < 4; ++i)
    if (address >= last[i].start && address + bytes <= last[i].end && last[i].changes == now) return last[i].real + (address - last[i].start);
  const int place = place_of(address, bytes);
  if (place < 0 && owns_all()) return (char*)address;
  if (place < 0) die(who, "not in one allocation", address, bytes);
  last[turn++ % 4] = (Region){memory[place].start, memory[place].start + memory[place].bytes, memory[place].real, now};
  return (char*)memory[place].real + (address - memory[place].start);
}

static size_t pages(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

int cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  const int code = fake_called("cuMemAlloc_v2", 1);
  if (code) return code;
  void* const real = mmap(NULL, pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (real == MAP_FAILED) return OUT_OF_MEMORY;
  memset(real, 0xff, bytes);  // NaN, and -1
  *address = (CUdeviceptr)(uintptr_t)real + bias();
  add(on_device, *address, bytes, real);
  return 0;
}

int cuMemFree_v2(CUdeviceptr address) {
  const int code = fake_called("cuMemFree_v2", 1);
  const int place = place_of(address, 1);
  if (code || drop(address)) return code ? code : INVALID_VALUE;
  munmap(memory[place].real, pages(memory[place].bytes));
  return 0;
}

// ---- between processes: exported memory becomes a file without a name, which others open through /proc ----

typedef struct { int pid, file; size_t bytes; char reserved[48]; } Handle;
int cuIpcGetMemHandle(Handle* handle, CUdeviceptr address) {
  const int code = fake_called("cuIpcGetMemHandle", 1), place = place_of(address, 1);
  if (code) return code;
  if (place < 0 || memory[place].start != address || memory[place].kind != on_device) return INVALID_VALUE;
  const size_t bytes = pages(memory[place].bytes);
  const int file = memfd_create("fake_gpu_memory", 0);
  if (file < 0 || write(file, memory[place].real, bytes) != (ssize_t)bytes) return OUT_OF_MEMORY;
  if (mmap(memory[place].real, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) return OUT_OF_MEMORY;
  *handle = (Handle){getpid(), file, memory[place].bytes, ""};
  return 0;
}
int cuIpcOpenMemHandle_v2(CUdeviceptr* address, Handle handle, unsigned flags) {
  const int code = fake_called("cuIpcOpenMemHandle_v2", 1);
  if (code || flags != 1) return code ? code : INVALID_VALUE;
  if (handle.pid == getpid()) return INVALID_CONTEXT;
  char name[64];
  snprintf(name, sizeof name, "/proc/%d/fd/%d", handle.pid, handle.file);
  const int file = open(name, O_RDWR);
  void* const real = file < 0 ? MAP_FAILED : mmap(NULL, pages(handle.bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (real == MAP_FAILED) return INVALID_VALUE;
  *address = (CUdeviceptr)(uintptr_t)real + bias();
  add(on_device, *address, handle.bytes, real);
  return 0;
}

int cuMemHostAlloc(void** address, size_t bytes, unsigned flags) {
  const int code = fake_called("cuMemHostAlloc", 1);
  if (code || flags > 7) return code ? code : INVALID_VALUE;
  if (posix_memalign(address, 4096, bytes)) return OUT_OF_MEMORY;
  memset(*address, 0xff, bytes);
  add(pinned, (CUdeviceptr)(uintptr_t)*address, bytes, *address);
  return 0;
}

int cuMemHostRegister_v2(void* address, size_t bytes, unsigned flags) {
  const int code = fake_called("cuMemHostRegister_v2", 1);
  if (code || flags > 15) return code ? code : INVALID_VALUE;
  if ((uintptr_t)address % 4096 || bytes % 4096) die("cuMemHostRegister", "no whole pages", (uintptr_t)address, bytes);
  add(pinned, (CUdeviceptr)(uintptr_t)address, bytes, address);
  return 0;
}

int cuMemHostGetDevicePointer_v2(CUdeviceptr* mapped, void* address, unsigned flags) {
  const int code = fake_called("cuMemHostGetDevicePointer_v2", 1), place = place_of((CUdeviceptr)(uintptr_t)address, 1);
  if (code || flags || place < 0 || memory[place].kind != pinned) return code ? code : INVALID_VALUE;
  if (memory[place].start != (CUdeviceptr)(uintptr_t)address) return INVALID_VALUE;  // no word on what lies within
  *mapped = (CUdeviceptr)(uintptr_t)address;
  return 0;
}

int cuPointerGetAttribute(void* value, int attribute, CUdeviceptr address) {
  if (kind_of(address, 1) != on_device) return INVALID_VALUE;
  *(unsigned*)value = attribute == 2 ? 2 : (unsigned)setting("FAKE_CUDA_DEVICE", 0);
  return attribute == 2 || attribute == 9 ? 0 : NOT_SUPPORTED;
}

// ---- streams ----

typedef struct Work {
  struct Work* next;
  void (*run)(void*);
  void* data;
} Work;

struct Stream {
  pthread_t thread;
  Work *first, *last;
  int busy, capturing;
  unsigned long random;
};

static void* serve(void* stream) {
  struct Stream* const s = stream;
  const long delay = setting("FAKE_CUDA_DELAY_US", 0);
  pthread_mutex_lock(&guard);
  for (;;) {
    while (!s->first) pthread_cond_wait(&happened, &guard);
    Work* const work = s->first;
    s->first = work->next;
    s->busy = 1;
    s->random = s->random * 6364136223846793005ul + 1442695040888963407ul;
    const long wait = delay ? (long)((s->random >> 33) % (unsigned long)delay) : 0;
    pthread_mutex_unlock(&guard);
    if (wait) pause_for(wait);
    work->run(work->data);
    free(work->data);
    free(work);
    pthread_mutex_lock(&guard);
    s->busy = 0;
    pthread_cond_broadcast(&happened);
  }
  return NULL;
}

static CUstream new_stream(void) {
  static unsigned long made;
  struct Stream* const stream = calloc(1, sizeof *stream);
  stream->random = (unsigned long)setting("FAKE_CUDA_SEED", 1) + 1000 * __atomic_add_fetch(&made, 1, __ATOMIC_RELAXED);
  pthread_create(&stream->thread, NULL, serve, stream);
  pthread_detach(stream->thread);
  return stream;
}

// The null stream does not wait for the others, which are all made non-blocking.
static pthread_once_t once = PTHREAD_ONCE_INIT;
static CUstream null_stream;
static void make_null_stream(void) { null_stream = new_stream(); }
static CUstream real(CUstream stream) {
  pthread_once(&once, make_null_stream);
  return (uintptr_t)stream > 2 ? stream : null_stream;  // 1 and 2 are names of default streams
}

void fake_enqueue(CUstream stream, void (*run)(void*), void* data) {
  Work* const work = malloc(sizeof *work);
  *work = (Work){NULL, run, data};
  stream = real(stream);
  pthread_mutex_lock(&guard);
  if (stream->first) stream->last->next = work;
  else stream->first = work;
  stream->last = work;
  pthread_cond_broadcast(&happened);
  pthread_mutex_unlock(&guard);
}

#define ENQUEUE(stream, run, Type, ...) do { Type* const one = malloc(sizeof *one); *one = (Type){__VA_ARGS__}; fake_enqueue(stream, run, one); } while (0)

int cuStreamCreate(CUstream* stream, unsigned flags) {
  const int code = fake_called("cuStreamCreate", 1);
  if (code || flags > 1) return code ? code : INVALID_VALUE;
  *stream = new_stream();
  return 0;
}

// The stream is being captured into a graph from now on / not any more. The default one cannot be while another is.
static int captures;
void fake_capture(CUstream stream, int begins) { stream->capturing = begins; captures += begins ? 1 : -1; }
int cuStreamIsCapturing(CUstream stream, int* status) {
  const int code = fake_called("cuStreamIsCapturing", 1);
  if (code || ((uintptr_t)stream <= 2 && captures)) return code ? code : 906;
  *status = (uintptr_t)stream > 2 ? stream->capturing : 0;
  return 0;
}

int cuStreamSynchronize(CUstream stream) {
  const int code = fake_called("cuStreamSynchronize", 1);
  if (code) return code;
  stream = real(stream);
  pthread_mutex_lock(&guard);
  while (stream->first || stream->busy) pthread_cond_wait(&happened, &guard);
  pthread_mutex_unlock(&guard);
  return 0;
}

typedef struct { char *to, *from; size_t bytes; } Copy;
static void do_copy(void* data) { const Copy* c = data; memcpy(c->to, c->from, c->bytes); }

static int copy(const char* who, CUdeviceptr to, enum Kind to_kind, CUdeviceptr from, enum Kind from_kind, size_t bytes, CUstream stream) {
  const int code = fake_called(who, 1);
  if (code) return code;
  if (kind_of(to, bytes) != to_kind) die(who, "the target is not what it shall be", to, bytes);
  if (kind_of(from, bytes) != from_kind) die(who, "the source is not what it shall be", from, bytes);
  ENQUEUE(stream, do_copy, Copy, fake_on_host(to, bytes, who), fake_on_host(from, bytes, who), bytes);
  return 0;
}

int cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy("cuMemcpyDtoHAsync_v2", (CUdeviceptr)(uintptr_t)to, pinned, from, on_device, bytes, stream);
}
int cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return copy("cuMemcpyHtoDAsync_v2", to, on_device, (CUdeviceptr)(uintptr_t)from, pinned, bytes, stream);
}
int cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy("cuMemcpyDtoDAsync_v2", to, on_device, from, on_device, bytes, stream);
}

typedef struct { long us; } Delay;
static void do_delay(void* data) { pause_for(((Delay*)data)->us); }
void fake_delay(CUstream stream, long us) { ENQUEUE(stream, do_delay, Delay, us); }

#ifndef WITHOUT_MEMORY_OPERATIONS
typedef struct { uint32_t* at; uint32_t value; } Flag;
static void do_write(void* data) { const Flag* f = data; __atomic_store_n(f->at, f->value, __ATOMIC_RELEASE); }
static void do_wait(void* data) {
  const Flag* f = data;
  while ((int32_t)(__atomic_load_n(f->at, __ATOMIC_ACQUIRE) - f->value) < 0) pause_for(10);
}

int cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags) {
  const int code = fake_called("cuStreamWriteValue32_v2", 1);
  if (code || flags) return code ? code : INVALID_VALUE;
  ENQUEUE(stream, do_write, Flag, (uint32_t*)fake_on_host(at, 4, "cuStreamWriteValue32_v2"), value);
  return 0;
}
int cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags) {
  const int code = fake_called("cuStreamWaitValue32_v2", 1);
  if (code || flags) return code ? code : INVALID_VALUE;
  ENQUEUE(stream, do_wait, Flag, (uint32_t*)fake_on_host(at, 4, "cuStreamWaitValue32_v2"), value);
  return 0;
}
#endif

// One thread serves all functions of the host, as a driver may: one that waits keeps the others waiting.
#ifndef TOO_OLD
static pthread_mutex_t host_thread = PTHREAD_MUTEX_INITIALIZER;
typedef struct { void (*run)(void*); void* data; } HostFunction;
static void do_host(void* data) {
  const HostFunction* f = data;
  pthread_mutex_lock(&host_thread);
  f->run(f->data);
  pthread_mutex_unlock(&host_thread);
}
int cuLaunchHostFunc(CUstream stream, void (*run)(void*), void* data) {
  const int code = fake_called("cuLaunchHostFunc", 1);
  if (code) return code;
  ENQUEUE(stream, do_host, HostFunction, run, data);
  return 0;
}
#endif

// ---- events: each record has a number, and a wait is for the latest at its call ----

struct Event { unsigned recorded, done, timed; struct Event* before; };
static struct Event* events;  // all there are: nothing is lost for a sanitizer
typedef struct { struct Event* event; unsigned number; } Moment;
static void do_record(void* data) {
  const Moment* m = data;
  pthread_mutex_lock(&guard);
  if (m->event->done < m->number) m->event->done = m->number;
  pthread_cond_broadcast(&happened);
  pthread_mutex_unlock(&guard);
}
static void do_wait_event(void* data) {
  const Moment* m = data;
  pthread_mutex_lock(&guard);
  while (m->event->done < m->number) pthread_cond_wait(&happened, &guard);
  pthread_mutex_unlock(&guard);
}

int cuEventCreate(struct Event** event, unsigned flags) {
  const int code = fake_called("cuEventCreate", 1);
  if (code || flags > 3) return code ? code : INVALID_VALUE;
  struct Event* const made = calloc(1, sizeof *made);
  made->timed = !(flags & 2);
  pthread_mutex_lock(&guard);
  made->before = events;
  *event = events = made;
  pthread_mutex_unlock(&guard);
  return 0;
}
int cuEventQuery(struct Event* event) {
  const int code = fake_called("cuEventQuery", 1);
  pthread_mutex_lock(&guard);
  const int done = event->done >= event->recorded;
  pthread_mutex_unlock(&guard);
  return code ? code : done ? 0 : NOT_READY;
}
// Both have happened; the fake's GPUs are as quick as FAKE_CUDA_ELAPSED_US says.
int cuEventElapsedTime(float* milliseconds, struct Event* start, struct Event* end) {
  const int code = fake_called("cuEventElapsedTime", 1);
  if (code || !start->timed || !end->timed) return code ? code : INVALID_VALUE;
  pthread_mutex_lock(&guard);
  const int ready = start->done && start->done >= start->recorded && end->done && end->done >= end->recorded;
  pthread_mutex_unlock(&guard);
  *milliseconds = (float)setting("FAKE_CUDA_ELAPSED_US", 20) / 1000;
  return ready ? 0 : NOT_READY;
}
static unsigned latest(struct Event* event, unsigned more) {
  pthread_mutex_lock(&guard);
  const unsigned number = event->recorded += more;
  pthread_mutex_unlock(&guard);
  return number;
}
int cuEventRecord(struct Event* event, CUstream stream) {
  const int code = fake_called("cuEventRecord", 1);
  if (code) return code;
  ENQUEUE(stream, do_record, Moment, event, latest(event, 1));
  return 0;
}
int cuStreamWaitEvent(CUstream stream, struct Event* event, unsigned flags) {
  const int code = fake_called("cuStreamWaitEvent", 1);
  if (code || flags) return code ? code : INVALID_VALUE;
  ENQUEUE(stream, do_wait_event, Moment, event, latest(event, 0));
  return 0;
}

// ---- kernels: their text is run (ptx.c) ----

typedef struct { const struct Program* program; char* arguments; unsigned x, y, threads; } Launch;
static void do_launch(void* data) {
  const Launch* l = data;
  fake_run(l->program, l->arguments, l->x, l->y, l->threads);
  free(l->arguments);
}

int cuModuleLoadData(void** module, const char* image) {
  const int code = fake_called("cuModuleLoadData", 1);
  *module = (void*)image;
  return code;
}
int cuModuleGetFunction(void** kernel, void* module, const char* name) {
  *kernel = fake_program(module, name);
  return *kernel ? fake_called("cuModuleGetFunction", 1) : 500;
}
int cuLaunchKernel(void* kernel, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty, unsigned tz, unsigned shared,
                   CUstream stream, void** parameters, void** extra) {
  const int code = fake_called("cuLaunchKernel", 1);
  if (code) return code;
  if (!kernel || !x || !y || y > 65535 || z != 1 || tx * ty * tz > 1024 || shared || extra) return INVALID_VALUE;
  char* const arguments = malloc(fake_parameters(kernel));
  fake_take_parameters(kernel, arguments, parameters);
  ENQUEUE(stream, do_launch, Launch, kernel, arguments, x, y, tx);
  return 0;
}

// ---- the device ----

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : (int)setting("FAKE_CUDA_INIT", 0); }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return ordinal < 0; }
int cuDeviceGetUuid(char uuid[16], int device) {
  memset(uuid, (int)setting("FAKE_CUDA_UUID", 7) + device, 16);
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) { (void)device; *context = &guard; return 0; }
int cuCtxPushCurrent_v2(void* context) { depth += 1; return context ? 0 : INVALID_CONTEXT; }
int cuCtxPopCurrent_v2(void** context) { *context = &guard; return depth-- > 0 ? 0 : INVALID_CONTEXT; }
int cuGetErrorName(int code, const char** name) {
  *name = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_OTHER";
  return 0;
}
int cuGetErrorString(int code, const char** text) {
  *text = code == OUT_OF_MEMORY ? "out of memory" : code == 100 ? "no CUDA-capable device is detected" : "another";
  return 0;
}
