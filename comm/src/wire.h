// Allreduce between the nodes: accumulators, in place, over a Transport.
//
// n ranks hold B bytes each. With latency a and bandwidth b:
//   doubling:  log2(n) rounds; in round k ranks 2^k apart swap everything:     log2(n) (a + B/b)
//   halving:   for n = 2^m: in round k ranks 2^k apart swap the halves of what is left, each sums one; then the same
//              backwards, sharing the sums:                                    2 m a + 2 B (n-1)/n / b
//              From where what is left fits into a packet, doubling:           one a instead of two for each such round
//   ring:      the data cut into n segments; each travels once round the ring
//              being summed, and once more being shared:                       2 (n-1) a + 2 B (n-1)/n / b
//   pairwise:  each rank sums a slice and sends it to all (pairwise.h):         2 a + 2 B (n-1)/n / b, in 2 (n-1) messages a piece
//   mpi:       the MPI library's own allreduce; where it has none for the type or operation, halving
// All but the last give every rank the same bits: where ranks swap all they combine it in rank order, elsewhere a segment
// is summed in one place. Of mpi the library's maker says what it does.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "reducer.h"
#include "scratch.h"
#include "transport.h"
#include "wire_table.h"

namespace dl {

// n accumulators. `scratch` is grown to what arrives at once.
void wire_allreduce(Transport& transport, WireAlgorithm algorithm, const Reducer& reducer, void* acc, std::size_t n,
                    Scratch& scratch);

void allreduce_doubling(Transport& transport, const Reducer& reducer, void* acc, std::size_t n,
                        Scratch& scratch);
void allreduce_halving(Transport& transport, const Reducer& reducer, void* acc, std::size_t n,
                       Scratch& scratch);
void allreduce_ring(Transport& transport, const Reducer& reducer, void* acc, std::size_t n, Scratch& scratch);
void allreduce_pairwise(Transport& transport, const Reducer& reducer, void* acc, std::size_t n, Scratch& scratch);

// acc[k] += more[k]; n of them
using Add = std::function<void(char* acc, const char* more, std::size_t n)>;

// Halving without its packets, of n numbers of `width` bytes that this code never touches: they may lie anywhere that the
// transport and `add` reach.
void allreduce_untouched(Transport& transport, std::size_t width, const Add& add, char* data, std::size_t n, Scratch& scratch);

}  // namespace dl
