#include "device/nccl.h"

#include <dlfcn.h>
#include <glob.h>

#include <mutex>

#include "device/choice.h"
#include "error.h"

namespace dl {
namespace {

constexpr int oldest = 21000;  // has the mean, and bfloat16
constexpr int float32 = 7, float64 = 8;
constexpr unsigned non_blocking = 1, no_timing = 2;  // CU_STREAM_NON_BLOCKING, CU_EVENT_DISABLE_TIMING

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

int code(Op op) {
  constexpr int codes[op_count] = {0, 4, 3, 2, 1};  // sum, mean, min, max, prod as ncclRedOp_t
  return codes[static_cast<int>(op)];
}

}  // namespace

Nccl::Nccl(const std::string& named, const std::string& prefix) : loaded_("NCCL", places(named, prefix), "DL_COMM_NCCL_LIBRARY") {
  get_version(&version_);
  if (version_ < oldest)
    throw CommError("NCCL " + version_text(version_) + " (" + loaded_.path() + ") is older than 2.10",
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

bool nccl_fits(const std::vector<Buffer>& buffers, int precision) {
  for (const Buffer& buffer : buffers)
    if (buffer.dtype != Dtype::float64 && (buffer.dtype != Dtype::float32 || precision > 0)) return false;
  return true;
}

NcclTeam::NcclTeam(const Nccl& nccl, const Gpu& gpu, const Nccl::Id& id, int rank, int size) : nccl_(nccl), cuda_(gpu.cuda) {
  nccl_.init_rank(&comm_, size, id, rank);
  cuda_.stream_create(&stream_, non_blocking);
  cuda_.event_create(&done_, no_timing);
}

void NcclTeam::begin_after(Cuda::Event event) { cuda_.stream_wait_event(stream_, event, 0); }

void NcclTeam::all_reduce(const std::vector<Buffer>& buffers, Op op) {
  nccl_.group_start();
  for (const Flat& flat : by_type(buffers))
    flat.stretches(0, flat.size(), [&](char* array, std::size_t n) {
      nccl_.all_reduce(array, array, n, flat.dtype() == Dtype::float64 ? float64 : float32, code(op), comm_, stream_);
    });
  nccl_.group_end();
}

void NcclTeam::finish_before(Cuda::Stream stream) {
  cuda_.event_record(done_, stream_);
  cuda_.stream_wait_event(stream, done_, 0);
}

}  // namespace dl
