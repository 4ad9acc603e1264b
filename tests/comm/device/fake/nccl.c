#include "fake.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

// Ranks meet in a file of /dev/shm, whose name is their id; the last to come removes the name.
typedef struct { char text[128]; } Id;
enum { in_progress = 7, room = 1 << 16, ranks_at_most = 8, names_at_most = 16, operations_at_most = 4096 };
typedef struct {
  atomic_int joined, came, round;
  char data[ranks_at_most][room];
} Hall;
typedef enum { all_reduce, reduce_scatter, all_gather, broadcast } Kind;
typedef struct { struct Comm* comm; Kind kind; char* data; size_t count; int type, op; CUstream stream; } Work;
typedef struct Comm { int rank, size; Hall* hall; atomic_int aborted; int groups, polls, n; struct Comm* before; Work held[operations_at_most]; } Comm;
static _Atomic(Comm*) comms;  // all there are

static void meet(Comm* comm) {
  Hall* const hall = comm->hall;
  const int round = atomic_load(&hall->round);
  if (atomic_fetch_add(&hall->came, 1) == comm->size - 1) {
    atomic_store(&hall->came, 0);
    atomic_fetch_add(&hall->round, 1);
    return;
  }
  const struct timespec moment = {0, 20000};
  while (atomic_load(&hall->round) == round && !atomic_load(&comm->aborted)) nanosleep(&moment, NULL);
}

int ncclGetVersion(int* version) {
  *version = getenv("FAKE_NCCL_VERSION") ? atoi(getenv("FAKE_NCCL_VERSION")) : 22105;
  return 0;
}
static Id made[names_at_most];
static int n_made;
static void remove_names(void) { for (int i = 0; i < n_made; ++i) shm_unlink(made[i].text); }
int ncclGetUniqueId(Id* id) {
  memset(id, 0, sizeof *id);
  snprintf(id->text, sizeof id->text, "/dl_comm_fake_nccl_%d_%d", getpid(), n_made);
  if (n_made == 0) atexit(remove_names);
  if (n_made < names_at_most) made[n_made++] = *id;
  return fake_called("ncclGetUniqueId", 1);
}
const char* ncclGetErrorString(int code) { return code == 2 ? "unhandled system error" : "another error"; }

// Does not wait for the others, as `blocking` 0 says.
typedef struct { size_t size; unsigned magic, version; int blocking; } Config;
int ncclCommInitRankConfig(Comm** comm, int size, Id id, int rank, const Config* config) {
  const int code = fake_called("ncclCommInitRankConfig", 1);
  if (code || size > ranks_at_most) return code ? code : 4;
  if (config->size < 20 || config->magic != 0xcafebeef || config->version < 21400 || config->blocking) return 4;
  const int file = shm_open(id.text, O_CREAT | O_RDWR, 0600);
  if (file < 0 || ftruncate(file, sizeof(Hall))) return 2;
  Hall* const hall = mmap(NULL, sizeof(Hall), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  *comm = calloc(1, sizeof **comm);
  (*comm)->before = atomic_exchange(&comms, *comm);
  (*comm)->rank = rank;
  (*comm)->size = size;
  (*comm)->hall = hall;
  if (rank == 1 && getenv("FAKE_NCCL_ABSENT")) return in_progress;  // for ever
  if (atomic_fetch_add(&hall->joined, 1) == size - 1) shm_unlink(id.text);
  return in_progress;
}
int ncclCommAbort(Comm* comm) {
  atomic_store(&comm->aborted, 1);
  return fake_called("ncclCommAbort", 0);
}

// ---- a group's operations; those of a communicator's first are enqueued only when its state has been asked for twice ----

static int type_width(int type) { return type <= 1 ? 1 : type <= 3 || type == 7 ? 4 : type == 6 || type == 9 ? 2 : 8; }

#define COMBINE(T)                                                                                                        \
  for (size_t i = 0; i < bytes / sizeof(T); ++i) {                                                                        \
    T value = ((T*)hall->data[0])[i];                                                                                     \
    for (int r = 1; r < work->comm->size; ++r) {                                                                          \
      const T other = ((T*)hall->data[r])[i];                                                                             \
      value = work->op == 2 ? (value > other ? value : other) : work->op == 3 ? (value < other ? value : other)           \
            : work->op == 1 ? (T)(value * other) : (T)(value + other);                                                    \
    }                                                                                                                     \
    ((T*)result)[i] = work->op == 4 ? value / (T)work->comm->size : value;                                                \
  }

static void do_work(void* data) {
  const Work* work = data;
  Hall* const hall = work->comm->hall;
  const int scattered = work->kind == reduce_scatter || work->kind == all_gather;
  const size_t part = work->count * (size_t)type_width(work->type), total = part * (size_t)(scattered ? work->comm->size : 1);
  char* const result = malloc(room);
  for (size_t at = 0; at < total; at += room) {
    const size_t bytes = total - at < room ? total - at : room;
    memcpy(hall->data[work->comm->rank], work->data + at, bytes);
    meet(work->comm);
    if (work->kind == broadcast) memcpy(result, hall->data[work->op], bytes);
    else if (work->kind == all_gather) for (size_t i = 0; i < bytes; ++i) result[i] = hall->data[(at + i) / part][i];
    else switch (work->type) {
      case 0: COMBINE(int8_t) break;
      case 1: COMBINE(uint8_t) break;
      case 2: COMBINE(int32_t) break;
      case 4: COMBINE(int64_t) break;
      case 7: COMBINE(float) break;
      default: COMBINE(double)
    }
    if (work->comm->rank == 1 && getenv("FAKE_NCCL_WRONG")) *(float*)result += 2;
    for (size_t i = 0; i < bytes; ++i)
      if (work->kind != reduce_scatter || (at + i) / part == (size_t)work->comm->rank) work->data[at + i] = result[i];
    meet(work->comm);
  }
  free(result);
}

static _Thread_local Comm* grouped;
static void enqueue(Comm* comm) {
  for (int i = 0; i < comm->n; ++i) {
    Work* const one = malloc(sizeof *one);
    *one = comm->held[i];
    fake_enqueue(one->stream, do_work, one);
  }
  comm->n = 0;
}
static _Thread_local int open_groups;
int fake_open_groups(void) { return open_groups; }  // of this thread
int ncclGroupStart(void) { ++open_groups; return fake_called("ncclGroupStart", 0); }
int ncclGroupEnd(void) {
  Comm* const comm = grouped;
  const int code = fake_called("ncclGroupEnd", 0);
  --open_groups;
  grouped = NULL;
  if (code || !comm) return code;
  if (comm->groups++ == 0) return comm->polls = 2, in_progress;
  enqueue(comm);
  return 0;
}
int ncclCommGetAsyncError(Comm* comm, int* error) {
  const int code = fake_called("ncclCommGetAsyncError", 0);
  *error = atomic_load(&comm->hall->joined) < comm->size || (comm->polls && --comm->polls) ? in_progress : 0;
  if (!*error) enqueue(comm);
  return code;
}

static int add(const char* who, Kind kind, const void* in, void* out, size_t count, int type, int op, Comm* comm, CUstream stream) {
  const int code = fake_called(who, 1);
  const size_t own = (size_t)comm->rank * count * (size_t)type_width(type);
  const char* const whole = kind == reduce_scatter ? in : out;
  // All in place; half types would be summed in half types, and integer means rounded otherwise than dl_comm's.
  const int in_place = (const char*)(kind == reduce_scatter ? out : in) == whole + (kind == reduce_scatter || kind == all_gather ? own : 0);
  const int fits = type == 7 || type == 8 || (op != 4 && type != 6 && type != 9 && type >= 0 && type <= 9) || kind > reduce_scatter;
  if (code || !in_place || !fits || op < 0 || op > 7 || comm->n == operations_at_most || comm->polls) return code ? code : 4;
  const size_t bytes = count * (size_t)type_width(type) * (size_t)(kind == reduce_scatter || kind == all_gather ? comm->size : 1);
  comm->held[comm->n++] = (Work){comm, kind, fake_on_host((CUdeviceptr)(uintptr_t)whole, bytes, who), count, type, op, stream};
  grouped = comm;
  return 0;
}
int ncclAllReduce(const void* in, void* out, size_t count, int type, int op, Comm* comm, CUstream stream) {
  return add("ncclAllReduce", all_reduce, in, out, count, type, op, comm, stream);
}
int ncclReduceScatter(const void* in, void* out, size_t count, int type, int op, Comm* comm, CUstream stream) {
  return add("ncclReduceScatter", reduce_scatter, in, out, count, type, op, comm, stream);
}
int ncclAllGather(const void* in, void* out, size_t count, int type, Comm* comm, CUstream stream) {
  return add("ncclAllGather", all_gather, in, out, count, type, 0, comm, stream);
}
int ncclBroadcast(const void* in, void* out, size_t count, int type, int root, Comm* comm, CUstream stream) {
  return add("ncclBroadcast", broadcast, in, out, count, type, root, comm, stream);
}
