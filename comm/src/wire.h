// Allreduce between the nodes: accumulators, in place, over a Transport.
//
// n ranks hold B bytes each. With latency a and bandwidth b:
//   doubling:  log2(n) rounds; in round k ranks 2^k apart swap everything:     log2(n) (a + B/b)
//   ring:      the data cut into n segments; each travels once round the ring
//              being summed, and once more being shared:                      2 (n-1) a + 2 B (n-1)/n / b
// Both give every rank the same bits: doubling combines each pair in rank order, the ring sums a segment in one place.
#pragma once

#include <cstddef>
#include <vector>

#include "reducer.h"
#include "transport.h"

namespace dl {

void wire_allreduce(Transport& transport, const Reducer& reducer, void* acc, std::size_t n, std::vector<char>& scratch);

void allreduce_doubling(Transport& transport, const Reducer& reducer, void* acc, std::size_t n,
                        std::vector<char>& scratch);
void allreduce_ring(Transport& transport, const Reducer& reducer, void* acc, std::size_t n, std::vector<char>& scratch);

}  // namespace dl
