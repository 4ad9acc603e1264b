// Allreduce between the nodes of float32 sums that are written as float16 or bfloat16 on the wire: half the bytes.
//
// The sums stay float32 on the nodes. As in halving (wire.h), a rank sums a stretch of the data over the rounds; what
// arrives was rounded once by its sender, so a sum is rounded once a round, and once more when it is shared. The shared
// bytes are passed on as they are, and every rank, also the one that made them, reads its result out of them: all ranks
// hold the same bits.
//
// Data go in blocks. A block of float16 carries a power of two by which its numbers were multiplied, so that the largest
// lies below 2^15: neither large sums nor small gradients leave the range of float16.
#pragma once

#include <cstddef>

#include "element.h"
#include "reducer.h"
#include "scratch.h"
#include "transport.h"

namespace dl {

// Whether data of `bytes` are worth packing, and may be: sums in float32 that do not fit into few packets.
bool worth_packing(const Reducer& reducer, std::size_t bytes);

// n float32 accumulators, in place. `half`: float16 or bfloat16.
void packed_allreduce(Transport& transport, Dtype half, const Reducer& reducer, float* acc, std::size_t n,
                      Scratch& scratch);

}  // namespace dl
