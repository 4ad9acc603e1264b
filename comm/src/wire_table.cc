#include "wire_table.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "error.h"

namespace dl {
namespace {

constexpr std::size_t long_segment = 128 * 1024;  // takes several times as long to send as the latency of a link
constexpr std::size_t short_swap = 192 * 1024;
constexpr int few = 8;  // ranks; among more, pairwise sends many and short messages
constexpr int largest_factor = 7;
constexpr std::size_t no_limit = std::numeric_limits<std::size_t>::max();
constexpr std::pair<const char*, WireAlgorithm> names[] = {{"doubling", WireAlgorithm::doubling},
                                                           {"halving", WireAlgorithm::halving},
                                                           {"ring", WireAlgorithm::ring},
                                                           {"pairwise", WireAlgorithm::pairwise},
                                                           {"mpi", WireAlgorithm::mpi}};

CommError bad(const std::string& rule, const std::string& text) {
  return CommError("DL_COMM_WIRE is '" + text + "': '" + rule + "' is no rule",
                   "it takes rules BYTES:ALGORITHM with rising BYTES, the last with *, as in 65536:doubling,*:ring; "
                   "the algorithms are doubling, halving, ring, pairwise and mpi");
}

WireRule rule_of(const std::string& rule, const std::string& text) {
  const std::size_t colon = rule.find(':');
  if (colon == std::string::npos) throw bad(rule, text);
  const std::string limit = rule.substr(0, colon), name = rule.substr(colon + 1);
  const bool digits = !limit.empty() && limit.size() < 19 && limit.find_first_not_of("0123456789") == std::string::npos;
  if (!digits && limit != "*") throw bad(rule, text);
  for (const auto& [known, algorithm] : names)
    if (name == known) return {digits ? static_cast<std::size_t>(std::stoull(limit)) : no_limit, algorithm};
  throw bad(rule, text);
}

}  // namespace

std::vector<WireRule> wire_table(const std::string& text) {
  std::vector<WireRule> table;
  for (std::size_t from = 0; !text.empty() && from <= text.size();) {
    const std::size_t end = std::min(text.find(',', from), text.size());
    const std::string rule = text.substr(from, end - from);
    table.push_back(rule_of(rule, text));
    const std::size_t before = table.size() > 1 ? table[table.size() - 2].up_to : 0;
    if (table.back().up_to <= before || (end == text.size()) != (table.back().up_to == no_limit)) throw bad(rule, text);
    from = end + 1;
  }
  return table;
}

std::string shown(const std::vector<WireRule>& table) {
  std::string text;
  for (const WireRule& rule : table) {
    text += (text.empty() ? "" : ",") + (rule.up_to == no_limit ? "*" : std::to_string(rule.up_to)) + ":";
    for (const auto& [name, algorithm] : names)
      if (algorithm == rule.algorithm) text += name;
  }
  return text;
}

WireAlgorithm wire_algorithm(const std::vector<WireRule>& table, std::size_t bytes, int ranks) {
  for (const WireRule& rule : table)
    if (bytes <= rule.up_to) return rule.algorithm;
  if (bytes <= (ranks <= 2 ? short_swap : packet)) return WireAlgorithm::doubling;
  if (ranks <= few) return WireAlgorithm::pairwise;
  if (bytes / static_cast<std::size_t>(ranks) >= long_segment) return WireAlgorithm::ring;
  return prime_factors(ranks).back() <= largest_factor ? WireAlgorithm::halving : WireAlgorithm::ring;
}

std::vector<int> prime_factors(int n) {
  std::vector<int> factors;
  for (int prime = 2; n > 1; ++prime)
    for (; n % prime == 0; n /= prime) factors.push_back(prime);
  return factors;
}

}  // namespace dl
