#include "device/choice.h"

#include <map>
#include <sstream>
#include <utility>

#include "error.h"

namespace dl {
namespace {

std::string rank_text(std::size_t rank) { return "rank " + std::to_string(rank); }

// Why NCCL cannot be used by these ranks; "": it can.
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

GpuPath choose(const std::string& wanted, const std::vector<GpuFacts>& all, const std::vector<int>& node_of) {
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (!all[rank].trouble.empty()) throw CommError(rank_text(rank) + " cannot reduce on its GPU: " + all[rank].trouble);
  if (wanted == "staged") return {false, "the host, as DL_COMM_GPU_PATH says"};
  const std::string against = against_nccl(all, node_of);
  if (against.empty()) return {true, "NCCL " + version_text(all[0].nccl)};
  if (wanted == "nccl")
    throw CommError("DL_COMM_GPU_PATH is nccl, but " + against, "leave it out, and the host reduces what lies on GPUs");
  return {false, "the host, since " + against};
}

}  // namespace dl
