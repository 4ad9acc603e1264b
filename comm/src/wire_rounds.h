// Who swaps what with whom in halving (wire.h): one round for each prime factor of the number of ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "wire_table.h"

namespace dl {

// One round of halving: `parts` ranks, `apart` apart, of which this is number `mine`, hold the same stretch of data.
struct Round {
  int parts, apart, mine;
  std::size_t first, n;  // the stretch

  std::size_t begin(int part) const {
    const auto of = static_cast<std::size_t>(parts), at = static_cast<std::size_t>(part);
    return first + n / of * at + std::min(at, n % of);
  }
  std::size_t count(int part) const { return begin(part + 1) - begin(part); }
  int member(int part, int rank) const { return rank + (part - mine) * apart; }
};

// The rounds of `rank`, nearest ranks first, over n elements (or blocks of them).
inline std::vector<Round> rounds_of(int size, int rank, std::size_t n) {
  std::vector<Round> rounds;
  std::size_t first = 0;
  int apart = 1;
  for (const int parts : prime_factors(size)) {
    const Round round{parts, apart, rank / apart % parts, first, n};
    rounds.push_back(round);
    first = round.begin(round.mine);
    n = round.count(round.mine);
    apart *= parts;
  }
  return rounds;
}

}  // namespace dl
