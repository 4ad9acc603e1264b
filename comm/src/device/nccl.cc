#include "device/nccl.h"

#include <dlfcn.h>
#include <glob.h>

#include <chrono>
#include <mutex>
#include <thread>

#include "device/choice.h"
#include "error.h"

namespace dl {
namespace {

constexpr int oldest = 21400;

constexpr const char* soname = "libnccl.so.2";

std::vector<std::string> places(const std::string& named, const std::string& prefix) {
  if (!named.empty()) return {named};
  if (dlopen(soname, RTLD_NOW | RTLD_NOLOAD) != nullptr) return {soname};  // the framework's
  std::vector<std::string> all;
  glob_t found;
  const std::string pattern = prefix + "/lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2";
  if (!prefix.empty() && glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    for (std::size_t i = 0; i < found.gl_pathc; ++i) all.emplace_back(found.gl_pathv[i]);
    globfree(&found);
  }
  all.emplace_back(soname);
  return all;
}

int op_code(Op op) {
  constexpr int codes[op_count] = {0, 4, 3, 2, 1};  // sum, mean, min, max, prod as ncclRedOp_t
  return codes[static_cast<int>(op)];
}

int type_code(Dtype dtype) {
  // float64, float32, float16, bfloat16, int8, int16, int32, int64, uint8 as ncclDataType_t; -1: it sums no such numbers as
  // they shall be.
  constexpr int codes[dtype_count] = {8, 7, -1, -1, 0, -1, 2, 4, 1};
  return codes[static_cast<int>(dtype)];
}

char* memory(Cuda::Pointer address) { return reinterpret_cast<char*>(static_cast<std::uintptr_t>(address)); }

}  // namespace

Nccl::Nccl(const std::string& named, const std::string& prefix)
    : loaded_("NCCL", places(named, prefix), "DL_COMM_NCCL_LIBRARY", "2.14") {
  get_version(&version_);
  if (version_ < oldest)
    throw CommError("NCCL " + version_text(version_) + " (" + loaded_.path() + ") is older than 2.14",
                    "name another library by DL_COMM_NCCL_LIBRARY");
}

const Nccl& Nccl::load(const std::string& named, const std::string& prefix) {
  static std::mutex guard;
  static const Nccl* one = nullptr;  // never destroyed: its threads may run
  const std::lock_guard<std::mutex> lock(guard);
  if (one == nullptr) one = new Nccl(named, prefix);
  return *one;
}

std::string Nccl::explained(int error) const {
  const auto text = reinterpret_cast<const char* (*)(int)>(loaded_.find("ncclGetErrorString"));
  return text == nullptr ? "error " + std::to_string(error) : text(error);
}

NcclTeam::NcclTeam(const Nccl& nccl, const Nccl::Id& id, int rank, int size, double timeout_s)
    : nccl_(nccl), rank_(rank), size_(size), timeout_s_(timeout_s) {
  Nccl::Config config;
  nccl_.init_rank.allowing(Nccl::in_progress, &comm_, size, id, rank, &config);
}

bool NcclTeam::joined() const {
  int state = 0;
  nccl_.async_error(comm_, &state);
  if (state != 0 && state != Nccl::in_progress) nccl_.loaded().refuse("to join the ranks", nccl_.explained(state));
  return state == 0;
}

bool NcclTeam::sums(Dtype dtype, Op op) {
  if (dtype == Dtype::float32 || dtype == Dtype::float64) return true;
  return op != Op::mean && type_code(dtype) >= 0;
}

// NCCL connects the ranks at their first operation, in the background: only then is it on the stream.
template <class Enqueue>
void NcclTeam::grouped(Enqueue enqueue) {
  nccl_.group_start();
  try {
    enqueue();
  } catch (const CommError&) {
    nccl_.group_end.code();  // else NCCL would hold back what others call in this thread
    throw;
  }
  int state = nccl_.group_end.allowing(Nccl::in_progress);
  const auto begun = std::chrono::steady_clock::now();
  while (state == Nccl::in_progress) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    nccl_.async_error(comm_, &state);
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count() > timeout_s_)
      throw CommError("NCCL has not begun an operation within " + std::to_string(static_cast<long>(timeout_s_)) + " s",
                      "another rank does not answer: its own output says why");
  }
  if (state != 0) nccl_.loaded().refuse("an operation", nccl_.explained(state));
}

void NcclTeam::all_reduce(Cuda::Stream stream, const Flat& flat, Op op) {
  grouped([&] {
    flat.stretches(0, flat.size(), [&](char* array, std::size_t n) {
      nccl_.all_reduce.allowing(Nccl::in_progress, array, array, n, type_code(flat.dtype()), op_code(op), comm_, stream);
    });
  });
}

void NcclTeam::broadcast(Cuda::Stream stream, const Flat& flat, int root) {
  grouped([&] {
    flat.stretches(0, flat.size(), [&](char* array, std::size_t n) {
      const std::size_t bytes = n * width(flat.dtype());
      nccl_.broadcast.allowing(Nccl::in_progress, array, array, bytes, type_code(Dtype::uint8), root, comm_, stream);
    });
  });
}

void NcclTeam::sum_slices(Cuda::Stream stream, Cuda::Pointer block, std::size_t each, bool wide) {
  char* const all = memory(block);
  char* const mine = all + static_cast<std::size_t>(rank_) * each * (wide ? 8 : 4);
  const int type = type_code(wide ? Dtype::float64 : Dtype::float32);
  grouped([&] {
    nccl_.reduce_scatter.allowing(Nccl::in_progress, all, mine, each, type, op_code(Op::sum), comm_, stream);
  });
}

void NcclTeam::share_slices(Cuda::Stream stream, Cuda::Pointer block, std::size_t each, bool wide) {
  char* const all = memory(block);
  const char* const mine = all + static_cast<std::size_t>(rank_) * each * (wide ? 8 : 4);
  const int type = type_code(wide ? Dtype::float64 : Dtype::float32);
  grouped([&] { nccl_.all_gather.allowing(Nccl::in_progress, mine, all, each, type, comm_, stream); });
}

}  // namespace dl
