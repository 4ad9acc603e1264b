// Which allreduce is used between the nodes, by the size of the data.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace dl {

// Bytes that take about as long to send as none.
inline constexpr std::size_t packet = 2048;

enum class WireAlgorithm { doubling, halving, ring, pairwise, mpi };  // wire.h says what they are

struct WireRule {
  std::size_t up_to;  // bytes that a rank brings to its peers; the last rule's is the largest number there is
  WireAlgorithm algorithm;
};

// The table that DL_COMM_WIRE writes as "65536:doubling,*:ring": up to 65536 bytes doubling, beyond that the ring. An
// empty text is an empty table. Throws CommError that shows the rule which is wrong.
std::vector<WireRule> wire_table(const std::string& text);

// The text of a table.
std::string shown(const std::vector<WireRule>& table);

// The algorithm for `bytes` among `ranks`. Without a table: doubling for what fits into a packet, and for what two swap sooner in
// one round than in halves in two; pairwise among few; the ring where its segments are long, since it talks to neighbours only
// and far links stay free; halving between. The ring also where the number of ranks has a prime factor beyond 7, which would
// cost halving as many steps.
WireAlgorithm wire_algorithm(const std::vector<WireRule>& table, std::size_t bytes, int ranks);

// The prime factors of n, smallest first.
std::vector<int> prime_factors(int n);

}  // namespace dl
