#include "device/choice.h"

#include <map>
#include <sstream>
#include <utility>

#include "error.h"

namespace dl {
namespace {

std::string rank_text(std::size_t rank) { return "rank " + std::to_string(rank); }

// "ranks 0 and 1 share a GPU"; "": none do.
std::string who_shares(const std::vector<GpuFacts>& all, const std::vector<int>& node_of) {
  std::map<std::pair<int, std::string>, std::size_t> owner;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto [first, fresh] = owner.emplace(std::make_pair(node_of[rank], all[rank].uuid), rank);
    if (!fresh) return "ranks " + std::to_string(first->second) + " and " + std::to_string(rank) + " share a GPU";
  }
  return "";
}

// Why NCCL cannot connect all of these ranks; "": it can.
std::string against_nccl(const std::vector<GpuFacts>& all, const std::string& shared) {
  if (!shared.empty()) return shared;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].nccl == 0) return rank_text(rank) + " has no NCCL: " + all[rank].why_no_nccl;
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank].nccl != all[0].nccl)
      return "rank 0 has NCCL " + version_text(all[0].nccl) + " and " + rank_text(rank) + " NCCL " + version_text(all[rank].nccl);
  return "";
}

// Why MPI cannot take the GPUs' memory between the nodes; "": it says that it can.
std::string against_mpi(const std::vector<GpuFacts>& all) {
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (!all[rank].why_no_mpi.empty())
      return rank_text(rank) + "'s MPI does not say that it takes memory of GPUs: " + all[rank].why_no_mpi;
  return "";
}

// Why the ranks of a node cannot each take a slice of the data over the nodes; "": they can.
std::string against_slices(const Settings& settings, const Layout& layout) {
  std::vector<int> ranks(static_cast<std::size_t>(layout.nodes), 0);
  for (const int node : layout.node_of) ++ranks[static_cast<std::size_t>(node)];
  for (std::size_t node = 1; node < ranks.size(); ++node)
    if (ranks[node] != ranks[0])
      return "node 0 has " + std::to_string(ranks[0]) + " ranks and node " + std::to_string(node) + " has " +
             std::to_string(ranks[node]);
  if (layout.owners < ranks[0])
    return "DL_COMM_WIRE_RANKS lets " + std::to_string(settings.wire_ranks) + " of a node's " + std::to_string(ranks[0]) +
           " ranks talk";
  return "";
}

}  // namespace

std::string version_text(int nccl) {
  return std::to_string(nccl / 10000) + "." + std::to_string(nccl / 100 % 100) + "." + std::to_string(nccl % 100);
}

std::string to_text(const GpuFacts& facts) {
  return std::to_string(facts.nccl) + "\n" + facts.uuid + "\n" + facts.trouble + "\n" + facts.why_no_nccl + "\n" +
         facts.why_no_mpi;
}

GpuFacts facts_of(const std::string& text) {
  std::istringstream lines(text);
  GpuFacts facts;
  std::string version;
  std::getline(lines, version);
  std::getline(lines, facts.uuid);
  std::getline(lines, facts.trouble);
  std::getline(lines, facts.why_no_nccl);
  std::getline(lines, facts.why_no_mpi);
  facts.nccl = std::stoi(version);
  return facts;
}

std::vector<GpuPath> choose(const Settings& settings, const std::vector<GpuFacts>& all, const Layout& layout) {
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (!all[rank].trouble.empty()) throw CommError(rank_text(rank) + " cannot reduce on its GPU: " + all[rank].trouble);
  if (settings.gpu_path == "staged") return {{Way::host, "the host, as DL_COMM_GPU_PATH says", ""}};
  const std::string checked = settings.check > 0 ? "DL_COMM_CHECK compares what the host reduces" : "";
  const std::string nccl = "NCCL " + version_text(all[0].nccl), slices = against_slices(settings, layout);
  const std::string shared = who_shares(all, layout.node_of);
  const auto first_of = [](const std::string& one, const std::string& other) { return one.empty() ? other : one; };
  const auto demanded = [&](const GpuPath& path, const std::string& against) -> std::vector<GpuPath> {
    if (against.empty()) return {path};
    throw CommError("DL_COMM_GPU_PATH is " + settings.gpu_path + ", but " + against, "leave it out, and another way is taken");
  };
  const std::string against = first_of(checked, against_nccl(all, shared));
  if (settings.gpu_path == "nccl") return demanded({Way::nccl, nccl, ""}, against);
  const bool alone = layout.local_size() == 1;
  if (settings.gpu_path == "mpi" && layout.nodes > 1)
    return demanded({Way::mpi, std::string("MPI, from GPU to GPU") + (alone ? "" : " between the nodes, and CUDA IPC within them"), ""},
                    first_of(checked, first_of(slices, against_mpi(all))));
  const std::string against_ipc = first_of(slices, alone ? "every node has one rank" : "");
  const std::string between = layout.nodes > 1 ? " within the nodes and the host between them" : "";
  if (settings.gpu_path == "ipc") return demanded({Way::ipc, "CUDA IPC" + between, ""}, first_of(checked, against_ipc));
  if (!checked.empty()) return {{Way::host, "the host, since " + checked, ""}};
  std::string hint;
  if (layout.nodes > 1 && slices.empty() && against_mpi(all).empty()) hint = "; DL_COMM_GPU_PATH=mpi gives MPI the GPUs' memory";
  if (!against_ipc.empty()) {
    if (against.empty()) hint = "; DL_COMM_GPU_PATH=nccl takes " + nccl + " over all ranks" + hint;
    return {{Way::host, "the host, since " + against_ipc, hint}};
  }
  std::vector<GpuPath> ways;
  const std::string since = against.empty() ? "" : ", since " + against;
  if (against.empty()) ways.push_back({layout.nodes > 1 ? Way::nccl_node : Way::nccl, nccl + between, hint});
  ways.push_back({Way::ipc, "CUDA IPC" + between + since, hint, !shared.empty()});
  ways.push_back({Way::host, "the host" + since, hint});
  return ways;
}

}  // namespace dl
