#include "device/choice.h"

#include <map>
#include <sstream>
#include <utility>

#include "error.h"

namespace dl {
namespace {

std::string rank_text(std::size_t rank) { return "rank " + std::to_string(rank); }

// Why NCCL cannot connect all of these ranks; "": it can.
std::string against_nccl(const std::vector<GpuFacts>& all, const std::vector<int>& node_of) {
  std::map<std::pair<int, std::string>, std::size_t> owner;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto [first, fresh] = owner.emplace(std::make_pair(node_of[rank], all[rank].uuid), rank);
    if (!fresh) return "ranks " + std::to_string(first->second) + " and " + std::to_string(rank) + " share a GPU";
  }
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].nccl == 0) return rank_text(rank) + " has no NCCL: " + all[rank].why_no_nccl;
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank].nccl != all[0].nccl)
      return "rank 0 has NCCL " + version_text(all[0].nccl) + " and " + rank_text(rank) + " NCCL " + version_text(all[rank].nccl);
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
  if (ranks[0] == 1) return "every node has one rank";
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
  return std::to_string(facts.nccl) + "\n" + facts.uuid + "\n" + facts.trouble + "\n" + facts.why_no_nccl;
}

GpuFacts facts_of(const std::string& text) {
  std::istringstream lines(text);
  GpuFacts facts;
  std::string version;
  std::getline(lines, version);
  std::getline(lines, facts.uuid);
  std::getline(lines, facts.trouble);
  std::getline(lines, facts.why_no_nccl);
  facts.nccl = std::stoi(version);
  return facts;
}

std::vector<GpuPath> choose(const Settings& settings, const std::vector<GpuFacts>& all, const Layout& layout) {
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (!all[rank].trouble.empty()) throw CommError(rank_text(rank) + " cannot reduce on its GPU: " + all[rank].trouble);
  if (settings.gpu_path == "staged") return {{Way::host, "the host, as DL_COMM_GPU_PATH says"}};
  const bool checked = settings.check > 0;
  const std::string against = checked ? "DL_COMM_CHECK compares what the host reduces" : against_nccl(all, layout.node_of);
  const std::string nccl = "NCCL " + version_text(all[0].nccl);
  if (settings.gpu_path == "nccl") {
    if (against.empty()) return {{Way::nccl, nccl}};
    throw CommError("DL_COMM_GPU_PATH is nccl, but " + against, "leave it out, and another way is taken");
  }
  if (checked) return {{Way::host, "the host, since " + against}};
  if (const std::string alone = against_slices(settings, layout); !alone.empty()) {
    const std::string hint = against.empty() ? "; DL_COMM_GPU_PATH=nccl takes " + nccl + " over all ranks" : "";
    return {{Way::host, "the host, since " + alone + hint}};
  }
  std::vector<GpuPath> ways;
  const std::string between = layout.nodes > 1 ? " within the nodes and the host between them" : "";
  if (against.empty()) ways.push_back({layout.nodes > 1 ? Way::nccl_node : Way::nccl, nccl + between});
  ways.push_back({Way::ipc, "CUDA IPC" + between + (against.empty() ? "" : ", since " + against)});
  ways.push_back({Way::host, "the host" + (against.empty() ? "" : ", since " + against)});
  return ways;
}

}  // namespace dl
