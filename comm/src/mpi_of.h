// Mpi for one kind of handle: an int in the MPICH family, a pointer in the others.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "error.h"
#include "mpi.h"

namespace dl {

template <class Handle>
struct MpiConstants {
  MpiFamily family;
  Handle comm_world;
  Handle byte_type;
  Handle float_type;
  Handle double_type;
  Handle int64_type;
  Handle sum;
  Handle errors_return;
  void* in_place;
  void* status_ignore;
  int thread_multiple;
};

template <class Handle>
class MpiOf : public Mpi {
 public:
  MpiOf(void* library, const MpiConstants<Handle>& constants) : library_(library), is_(constants) {
    find(init_thread_, "MPI_Init_thread");
    find(initialized_, "MPI_Initialized");
    find(finalized_, "MPI_Finalized");
    find(query_thread_, "MPI_Query_thread");
    find(finalize_, "MPI_Finalize");
    find(abort_, "MPI_Abort");
    find(version_, "MPI_Get_library_version");
    find(error_string_, "MPI_Error_string");
    find(set_errhandler_, "MPI_Comm_set_errhandler");
    find(dup_, "MPI_Comm_dup");
    find(split_, "MPI_Comm_split");
    find(free_, "MPI_Comm_free");
    find(rank_, "MPI_Comm_rank");
    find(size_, "MPI_Comm_size");
    find(isend_, "MPI_Isend");
    find(irecv_, "MPI_Irecv");
    find(test_, "MPI_Test");
    find(cancel_, "MPI_Cancel");
    find(request_free_, "MPI_Request_free");
    find(allreduce_, "MPI_Allreduce");
    find(iallreduce_, "MPI_Iallreduce");
    find(comm_group_, "MPI_Comm_group");
    find(group_incl_, "MPI_Group_incl");
    find(group_free_, "MPI_Group_free");
    find(create_group_, "MPI_Comm_create_group");
  }

  MpiFamily family() const override { return is_.family; }

  std::string version() override {
    std::vector<char> text(8193, '\0');
    int length = 0;
    check(version_(text.data(), &length), "MPI_Get_library_version");
    return std::string(text.data()).substr(0, std::strcspn(text.data(), "\n"));
  }

  bool initialized() override { return flag(initialized_, "MPI_Initialized"); }
  bool finalized() override { return flag(finalized_, "MPI_Finalized"); }

  void init() override {
    int provided = 0;
    check(init_thread_(nullptr, nullptr, is_.thread_multiple, &provided), "MPI_Init_thread");
  }

  bool thread_multiple() override {
    int provided = 0;
    check(query_thread_(&provided), "MPI_Query_thread");
    return provided >= is_.thread_multiple;
  }

  // Open MPI and MPICH have a function for it; Cray's MPICH goes by a variable that its users know.
  std::string against_gpu_memory() override {
    const auto query = reinterpret_cast<int (*)()>(dlsym(library_, "MPIX_Query_cuda_support"));
    if (query != nullptr && query() == 1) return "";
    if (version().find("CRAY") != std::string::npos) {
      const char* enabled = std::getenv("MPICH_GPU_SUPPORT_ENABLED");
      return enabled != nullptr && std::string(enabled) == "1" ? "" : "MPICH_GPU_SUPPORT_ENABLED is not 1";
    }
    return query == nullptr ? "it has no MPIX_Query_cuda_support" : "MPIX_Query_cuda_support gives 0";
  }

  void finalize() override { check(finalize_(), "MPI_Finalize"); }
  void abort(int code) override { abort_(is_.comm_world, code); }

  Comm world() override { return widen(is_.comm_world); }

  Comm dup(Comm comm) override {
    Handle made{};
    check(dup_(narrow(comm), &made), "MPI_Comm_dup");
    check(set_errhandler_(made, is_.errors_return), "MPI_Comm_set_errhandler");
    return widen(made);
  }

  Comm split(Comm comm, int color, int key) override {
    Handle made{};
    check(split_(narrow(comm), color, key, &made), "MPI_Comm_split");
    return widen(made);
  }

  void free(Comm comm) override {
    Handle handle = narrow(comm);
    check(free_(&handle), "MPI_Comm_free");
  }

  int rank(Comm comm) override {
    int value = 0;
    check(rank_(narrow(comm), &value), "MPI_Comm_rank");
    return value;
  }

  int size(Comm comm) override {
    int value = 0;
    check(size_(narrow(comm), &value), "MPI_Comm_size");
    return value;
  }

  Request isend(const void* data, int bytes, int to, int tag, Comm comm) override {
    Handle request{};
    check(isend_(data, bytes, is_.byte_type, to, tag, narrow(comm), &request), "MPI_Isend");
    return widen(request);
  }

  Request irecv(void* data, int bytes, int from, int tag, Comm comm) override {
    Handle request{};
    check(irecv_(data, bytes, is_.byte_type, from, tag, narrow(comm), &request), "MPI_Irecv");
    return widen(request);
  }

  bool test(Request& request) override {
    Handle handle = narrow(request);
    int done = 0;
    check(test_(&handle, &done, is_.status_ignore), "MPI_Test");
    request = widen(handle);
    return done != 0;
  }

  void cancel(Request& request) override {
    Handle handle = narrow(request);
    cancel_(&handle);
    request_free_(&handle);
  }

  Comm group(Comm comm, const std::vector<int>& ranks, int tag) override {
    Handle all{}, some{}, made{};
    check(comm_group_(narrow(comm), &all), "MPI_Comm_group");
    check(group_incl_(all, static_cast<int>(ranks.size()), ranks.data(), &some), "MPI_Group_incl");
    check(create_group_(narrow(comm), some, tag, &made), "MPI_Comm_create_group");
    group_free_(&all);
    group_free_(&some);
    check(set_errhandler_(made, is_.errors_return), "MPI_Comm_set_errhandler");
    return widen(made);
  }

  Request start_sum(void* data, int count, Dtype dtype, Comm comm) override {
    const Handle type = dtype == Dtype::float32   ? is_.float_type
                        : dtype == Dtype::float64 ? is_.double_type
                                                  : is_.int64_type;
    Handle request{};
    check(iallreduce_(is_.in_place, data, count, type, is_.sum, narrow(comm), &request), "MPI_Iallreduce");
    return widen(request);
  }

  void allreduce_float_sum(float* data, int count, Comm comm) override {
    check(allreduce_(is_.in_place, data, count, is_.float_type, is_.sum, narrow(comm)), "MPI_Allreduce");
  }

 private:
  static Comm widen(Handle handle) {
    Comm wide = 0;
    std::memcpy(&wide, &handle, sizeof handle);
    return wide;
  }
  static Handle narrow(Comm wide) {
    Handle handle{};
    std::memcpy(&handle, &wide, sizeof handle);
    return handle;
  }

  template <class Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    if (function == nullptr) throw CommError(std::string("the MPI library has no function ") + name);
  }

  bool flag(int (*function)(int*), const char* name) {
    int value = 0;
    check(function(&value), name);
    return value != 0;
  }

  void check(int code, const char* function) {
    if (code == 0) return;
    char text[1024] = "";
    int length = 0;
    error_string_(code, text, &length);
    throw CommError(std::string(function) + " failed: " + text);
  }

  void* library_;
  MpiConstants<Handle> is_;
  int (*init_thread_)(int*, char***, int, int*);
  int (*initialized_)(int*);
  int (*finalized_)(int*);
  int (*query_thread_)(int*);
  int (*finalize_)();
  int (*abort_)(Handle, int);
  int (*version_)(char*, int*);
  int (*error_string_)(int, char*, int*);
  int (*set_errhandler_)(Handle, Handle);
  int (*dup_)(Handle, Handle*);
  int (*split_)(Handle, int, int, Handle*);
  int (*free_)(Handle*);
  int (*rank_)(Handle, int*);
  int (*size_)(Handle, int*);
  int (*isend_)(const void*, int, Handle, int, int, Handle, Handle*);
  int (*irecv_)(void*, int, Handle, int, int, Handle, Handle*);
  int (*test_)(Handle*, int*, void*);
  int (*cancel_)(Handle*);
  int (*request_free_)(Handle*);
  int (*allreduce_)(const void*, void*, int, Handle, Handle, Handle);
  int (*iallreduce_)(const void*, void*, int, Handle, Handle, Handle, Handle*);
  int (*comm_group_)(Handle, Handle*);
  int (*group_incl_)(Handle, int, const int*, Handle*);
  int (*group_free_)(Handle*);
  int (*create_group_)(Handle, Handle, int, Handle*);
};

}  // namespace dl
