// How the ranks of a GpuTeam come together: who has which GPU and which NCCL, their pinned memory, and the way they go.
// Every step ends with all ranks knowing of every rank's trouble, so that all go on, or all try the next way.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "device/gpu_team.h"
#include "error.h"
#include "segment.h"

namespace dl {
namespace {

constexpr unsigned mapped = 1 | 2;                   // CU_MEMHOSTREGISTER_PORTABLE, DEVICEMAP
constexpr unsigned lazy_peer_access = 1;             // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
constexpr std::size_t page = 4096;

// Smaller pieces of a GPU's memory share a block with others, and a block is what other processes open.
constexpr std::size_t own_block = 2u << 20;

std::size_t up(std::size_t bytes, std::size_t grain = page) { return (bytes + grain - 1) / grain * grain; }

std::string text_of(const CommError& error) {
  return error.what() + (error.hint().empty() ? "" : "; " + error.hint());
}

template <class Thing>
std::string bytes_of(const Thing& thing) {
  return {thing.bytes, sizeof thing.bytes};
}

}  // namespace

GpuTeam::Answers GpuTeam::ask(const std::string& what, const std::function<std::string()>& mine) {
  std::string own;
  try {
    own = "+" + mine();
  } catch (const CommError& error) {
    own = "-" + text_of(error);
  }
  Answers answers;
  team_.call({what, {}, {}}, [&](Channel& channel) { answers.all = allgather(channel.everyone(), own); });
  for (std::size_t rank = 0; rank < answers.all.size(); ++rank) {
    const bool fine = answers.all[rank].front() == '+';
    answers.all[rank].erase(0, 1);
    if (!fine && answers.trouble.empty()) answers.trouble = "rank " + std::to_string(rank) + ": " + answers.all[rank];
  }
  return answers;
}

std::string GpuTeam::until_all(const std::string& what, double seconds, const std::function<bool()>& is_so) {
  const auto begun = std::chrono::steady_clock::now();
  for (;;) {
    const Answers answers = ask("whether " + what, [&] {
      for (int look = 0; look < 20; ++look) {
        if (is_so()) return "yes";
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      if (std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count() > seconds)
        throw CommError("after " + std::to_string(static_cast<long>(seconds)) + " s it is still not so that " + what);
      return "no";
    });
    if (!answers.trouble.empty()) return answers.trouble;
    if (std::count(answers.all.begin(), answers.all.end(), "no") == 0) return "";
  }
}

std::vector<GpuPath> GpuTeam::ways(const void* address, Cuda::Stream stream) {
  GpuFacts mine;
  try {
    gpu_ = std::make_unique<Gpu>(gpu_of(Cuda::load(settings_.cuda_library), address));
    mine.uuid = gpu_->uuid;
    const Current here(*gpu_);
    refuse_capture(gpu_->cuda, stream);
  } catch (const CommError& error) {
    mine.trouble = text_of(error);
  }
  if (settings_.gpu_path != "staged") {
    try {
      mine.nccl = Nccl::load(settings_.nccl_library, settings_.prefix).version();
    } catch (const CommError& error) {
      mine.why_no_nccl = text_of(error);
    }
  }
  std::vector<GpuFacts> all;
  team_.call({"the ranks' GPUs", {}, {}}, [&](Channel& channel) {
    mine.why_no_mpi = channel.everyone().against_gpu_memory();
    for (const std::string& text : allgather(channel.everyone(), to_text(mine))) all.push_back(facts_of(text));
  });
  return choose(settings_, all, layout_);
}

// A part of the node's shared memory for each rank, which its GPU copies to and the others' threads combine in place.
void GpuTeam::pin_memory() {
  const std::size_t each = Pipeline::footprint(settings_);
  const auto threads = static_cast<std::size_t>(std::min(team_.threads(), settings_.gpu_nthreads));
  const std::size_t bytes = up(each * threads);
  const auto segment = shared("memory for the ranks' GPUs", bytes * layout_.locals.size());
  const Answers pinned = ask("the ranks' pinned memory", [&] {
    if (!segment.memory) throw CommError(segment.why_not);
    pinned_ = arena_.add(segment.memory, layout_.local_rank, bytes, bytes);
    try {
      gpu_->cuda.host_register(pinned_, bytes, mapped);
      for (std::size_t i = 0; i < threads; ++i)
        pipelines_.push_back(std::make_unique<Pipeline>(*gpu_, settings_, pinned_, i * each));
    } catch (const CommError& error) {
      throw CommError(std::to_string(bytes >> 10) + " KiB of pinned memory: " + text_of(error));
    }
    return std::string(pipelines_.front()->in_stream() ? "" : "host");
  });
  if (!pinned.trouble.empty()) throw CommError("the ranks cannot reduce on their GPUs: " + pinned.trouble);
  // Where a host's function waits for the GPU's stream, the order of all waits must be the same everywhere.
  if (std::count(pinned.all.begin(), pinned.all.end(), "host") > 0) pipelines_.resize(1);
}

GpuTeam::Shared GpuTeam::shared(const std::string& what, std::size_t bytes) {
  Shared made;
  team_.call({what, {}, {}}, [&](Channel& channel) {
    made.memory = share(*channel.among(layout_.locals), bytes, settings_.shared_memory, made.why_not);
  });
  return made;
}

// Says "failed: ..." where a way cannot be gone, or that it is slow, the same on all ranks; "": it can.
std::string GpuTeam::open(const GpuPath& path) {
  const Way way = path.way;
  if (way == Way::host) return "";
  std::string trouble = ask("memory on the ranks' GPUs", [&] {
    if (way != Way::mpi && !pipelines_.front()->in_stream())
      throw CommError("the driver's streams cannot wait for a number (cuStreamWaitValue32)");
    const std::size_t bytes = up(after_trial() + (way == Way::mpi ? Blocks::footprint(settings_) / 2 : 0), own_block);
    if (scratch_ == 0) gpu_->cuda.device_allocate(&scratch_, bytes);
    return "";
  }).trouble;
  const bool by_nccl = way == Way::nccl || way == Way::nccl_node;
  if (trouble.empty()) trouble = by_nccl ? join_nccl(way == Way::nccl) : join_ipc(way == Way::mpi);
  if (trouble.empty()) trouble = try_out();
  if (!trouble.empty()) trouble = "failed: " + trouble;
  else if (path.only_if_soon) trouble = try_meetings();
  if (trouble.empty()) return "";
  if (neighbours_) neighbours_->let_go(work_);
  blocks_.reset();
  nccl_ = nullptr;
  by_hosts_ = nullptr;
  neighbours_.reset();
  return trouble;
}

// A rank that NCCL fails on, or that never comes, is known to all within moments, or after the timeout: none waits for it
// in a call of NCCL's.
std::string GpuTeam::join_nccl(bool all_ranks) {
  const Nccl& nccl = Nccl::load(settings_.nccl_library, settings_.prefix);
  const int first = all_ranks ? 0 : layout_.locals.front();
  const Answers names = ask("NCCL's name for the ranks", [&] {
    Nccl::Id id{};
    if (rank_ == first) nccl.unique_id(&id);
    return bytes_of(id);
  });
  if (!names.trouble.empty()) return names.trouble;
  const std::string begun = ask("the ranks' NCCL", [&] {
    Nccl::Id id;
    std::memcpy(id.bytes, names.all[static_cast<std::size_t>(first)].data(), sizeof id.bytes);
    const int size = all_ranks ? static_cast<int>(layout_.node_of.size()) : layout_.local_size();
    auto made = std::make_unique<NcclTeam>(nccl, id, all_ranks ? rank_ : layout_.local_rank, size, settings_.timeout_s);
    nccl_ = made.get();
    neighbours_ = std::move(made);
    blocks_ = std::make_unique<Blocks>(*gpu_, settings_, *neighbours_, scratch_);
    return "";
  }).trouble;
  if (!begun.empty()) return begun;
  return until_all("NCCL has joined the ranks", settings_.timeout_s, [&] { return nccl_->joined(); });
}

std::string GpuTeam::join_ipc(bool by_hosts) {
  const Cuda& cuda = gpu_->cuda;
  const bool alone = layout_.local_size() == 1;
  const Answers handles = ask("the ranks' memory for each other", [&] {
    Cuda::IpcHandle handle{};
    if (!alone) cuda.ipc_handle(&handle, scratch_);
    return bytes_of(handle);
  });
  if (!handles.trouble.empty()) return handles.trouble;
  std::vector<Cuda::Pointer> theirs(layout_.locals.size(), scratch_);
  const std::string opened = ask("each other's memory", [&] {
    if (!alone && !cuda.ipc_open) throw CommError("the driver has no cuIpcOpenMemHandle_v2");
    for (std::size_t local = 0; local < theirs.size(); ++local) {
      if (static_cast<int>(local) == layout_.local_rank) continue;
      Cuda::IpcHandle handle;
      std::memcpy(handle.bytes, handles.all[static_cast<std::size_t>(layout_.locals[local])].data(), sizeof handle.bytes);
      cuda.ipc_open(&theirs[local], handle, lazy_peer_access);
    }
    return "";
  }).trouble;
  if (!opened.empty()) return opened;
  if (by_hosts) return ask("the ranks' meetings by their hosts", [&] {
    auto made = std::make_unique<IpcByHosts>(*gpu_, theirs, layout_.local_rank, scratch_ + after_trial());
    by_hosts_ = made.get();
    neighbours_ = std::move(made);
    blocks_ = std::make_unique<Blocks>(*gpu_, settings_, *neighbours_, scratch_);
    copier_ = std::make_unique<Copier>(*gpu_, pinned_);
    return "";
  }).trouble;
  const std::size_t bytes = up(IpcInStreams::footprint(layout_.local_size()));
  const Shared flags = shared("numbers that the ranks' GPUs wait for", bytes);
  return ask("CUDA IPC", [&] {
    if (!flags.memory) throw CommError(flags.why_not);
    flags_ = flags.memory;
    cuda.host_register(flags_->base(), bytes, mapped);
    neighbours_ = std::make_unique<IpcInStreams>(*gpu_, theirs, flags_->base(), layout_.local_rank);
    blocks_ = std::make_unique<Blocks>(*gpu_, settings_, *neighbours_, scratch_);
    return "";
  }).trouble;
}

}  // namespace dl
