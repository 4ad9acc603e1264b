// How the ranks of a GpuTeam come together: who has which GPU and which NCCL, which way they go, and their pinned memory.
// Every step ends with all ranks knowing of every rank's trouble, so that all go on or none does.
#include <algorithm>
#include <utility>

#include "device/gpu_team.h"
#include "error.h"
#include "segment.h"

namespace dl {
namespace {

constexpr unsigned mapped = 1 | 2;  // CU_MEMHOSTREGISTER_PORTABLE, DEVICEMAP
constexpr std::size_t page = 4096;

std::string text_of(const CommError& error) {
  return error.what() + (error.hint().empty() ? "" : "; " + error.hint());
}

}  // namespace

std::vector<std::string> GpuTeam::told(const std::string& what, const std::string& mine) {
  std::vector<std::string> all;
  team_.call({what, {}, {}}, [&](Lane& lane) { all = allgather(lane.everyone(), mine); });
  return all;
}

void GpuTeam::throw_first(const std::string& what, const std::string& mine) {
  const std::vector<std::string> all = told(what, mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (!all[rank].empty()) throw CommError("rank " + std::to_string(rank) + " cannot reduce on its GPU: " + all[rank]);
}

void GpuTeam::find_path(const void* address) {
  GpuFacts mine;
  try {
    gpu_ = std::make_unique<Gpu>(gpu_of(Cuda::load(settings_.cuda_library), address));
    mine.uuid = gpu_->uuid;
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
  for (const std::string& text : told("the ranks' GPUs", to_text(mine))) all.push_back(facts_of(text));
  path_ = choose(settings_.gpu_path, all, layout_.node_of);
}

// NCCL may be there and fail all the same, say in a container without enough shared memory.
void GpuTeam::join_nccl() {
  const Nccl& nccl = Nccl::load(settings_.nccl_library, settings_.prefix);
  std::string trouble;
  Nccl::Id id{};
  try {
    const Current here(*gpu_);
    if (rank_ == 0) nccl.unique_id(&id);
  } catch (const CommError& error) {
    trouble = text_of(error);
  }
  const std::string sent = told("NCCL's name for the ranks", trouble.empty() ? std::string(id.bytes, sizeof id.bytes) : "").front();
  if (trouble.empty() && sent.size() == sizeof id.bytes) {
    try {
      const Current here(*gpu_);
      std::copy(sent.begin(), sent.end(), id.bytes);
      nccl_ = std::make_unique<NcclTeam>(nccl, *gpu_, id, rank_, static_cast<int>(layout_.node_of.size()));
    } catch (const CommError& error) {
      trouble = text_of(error);
    }
  }
  const std::vector<std::string> troubles = told("the ranks' NCCL", trouble);
  for (std::size_t rank = 0; rank < troubles.size(); ++rank) {
    if (troubles[rank].empty()) continue;
    nccl_.reset();
    const std::string why = "rank " + std::to_string(rank) + " has no use of NCCL: " + troubles[rank];
    if (settings_.gpu_path == "nccl") throw CommError("DL_COMM_GPU_PATH is nccl, but " + why);
    path_ = {false, "the host, since " + why};
    return;
  }
}

// A part of the node's shared memory for each rank, which its GPU copies to and the others' threads combine in place.
void GpuTeam::pin_memory() {
  const std::size_t each = Pipeline::footprint(settings_), threads = static_cast<std::size_t>(team_.threads());
  const std::size_t bytes = (each * threads + page - 1) / page * page;
  std::string trouble;
  std::shared_ptr<Segment> segment;
  team_.call({"memory for the ranks' GPUs", {}, {}}, [&](Lane& lane) {
    segment = share(*lane.among(layout_.locals), bytes * layout_.locals.size(), settings_.shared_memory, trouble);
  });
  if (segment) {
    trouble.clear();
    char* const memory = arena_.add(std::move(segment), layout_.local_rank, bytes, bytes);
    try {
      const Current here(*gpu_);
      gpu_->cuda.host_register(memory, bytes, mapped);
      for (std::size_t i = 0; i < threads; ++i)
        pipelines_.push_back(std::make_unique<Pipeline>(*gpu_, settings_, memory + i * each));
    } catch (const CommError& error) {
      trouble = std::to_string(bytes >> 10) + " KiB of pinned memory: " + text_of(error);
    }
  }
  throw_first("the ranks' pinned memory", trouble);
  // Where a host's function waits for the GPU's stream, the order of all waits must be the same everywhere.
  const std::vector<std::string> kinds = told("how the ranks' streams wait", pipelines_.front()->in_stream() ? "" : "host");
  if (std::any_of(kinds.begin(), kinds.end(), [](const std::string& kind) { return !kind.empty(); })) pipelines_.resize(1);
}

}  // namespace dl
