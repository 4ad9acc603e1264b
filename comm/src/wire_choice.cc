#include "wire_choice.h"

#include <algorithm>
#include <limits>

namespace dl {
namespace {

constexpr double clearly = 0.95;      // of the first way's time: less is no chance
constexpr int most_pairwise_timed = 64;  // nodes

}  // namespace

std::vector<WireAlgorithm> WireChoice::ways(const Settings& settings, int nodes) {
  if (nodes < 2 || !settings.wire.empty() || settings.wire_dtype != "same") return {};
  const WireAlgorithm usual = wire_algorithm({}, std::numeric_limits<std::size_t>::max(), nodes);
  std::vector<WireAlgorithm> found{usual};
  const auto also = [&](WireAlgorithm way) {
    if (way != usual) found.push_back(way);
  };
  if (nodes == 2) also(WireAlgorithm::doubling);
  if (!settings.wire_timed) return found;
  if (nodes > 2) also(WireAlgorithm::doubling);
  if (nodes <= most_pairwise_timed) also(WireAlgorithm::pairwise);
  also(WireAlgorithm::halving);
  also(WireAlgorithm::ring);
  also(WireAlgorithm::mpi);
  return found;
}

int WireChoice::size_of(std::size_t bytes) {
  int power = 0;
  while (bytes >>= 1) ++power;
  return power;
}

void WireChoice::took(Size& size, std::size_t turn, double seconds, Transport& everyone) {
  if (size.fastest.empty()) size.fastest.assign(ways_.size(), std::numeric_limits<double>::max());
  size.fastest[turn] = std::min(size.fastest[turn], seconds);
  if (++size.calls < turns * ways_.size()) return;
  const std::size_t n = ways_.size();
  std::vector<double> all(n * static_cast<std::size_t>(everyone.size()));
  allgather(everyone, size.fastest.data(), n * sizeof(double), all.data());
  for (std::size_t i = 0; i < all.size(); ++i) size.fastest[i % n] = std::max(size.fastest[i % n], all[i]);
  const auto best = std::min_element(size.fastest.begin(), size.fastest.end());
  size.way = *best < clearly * size.fastest.front() ? ways_[static_cast<std::size_t>(best - size.fastest.begin())] : ways_.front();
  size.decided = true;
}

std::vector<WireRule> WireChoice::table() const {
  std::vector<WireRule> rules;
  for (const auto& [power, size] : sizes_) {
    if (!size.decided) continue;
    const std::size_t up_to = (std::size_t{2} << power) - 1;
    if (!rules.empty() && rules.back().algorithm == size.way) rules.back().up_to = up_to;
    else rules.push_back({up_to, size.way});
  }
  if (!rules.empty()) rules.back().up_to = std::numeric_limits<std::size_t>::max();
  return rules;
}

}  // namespace dl
