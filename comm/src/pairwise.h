// Allreduce among few nodes: each takes a slice of every piece, gets the others' of that slice, combines them in rank order,
// and sends the result to all. With n ranks that hold B bytes each, latency a and bandwidth b:
//
//   2 a + 2 B (n-1)/n / b, in 2 (n-1) messages a piece
//
// One thread does it all. Up to three pieces are anywhere between open() and close(): while one is combined, the next is on the
// wire, and the results of the one before:
//
//   open 0, open 1 | combine 0, open 2 | combine 1, close 0, open 3 | combine 2, close 1, open 4 ...
//
// All ranks hold the same bits: every element is combined in one place, in rank order.
#pragma once

#include <cstddef>

#include "scratch.h"
#include "transport.h"

namespace dl {

// The data of one rank, as pairwise() sees them: pieces, each of elements [0, n). A `slot` is memory for so many.
class PairwiseData {
 public:
  static constexpr std::size_t at_once = 3;  // pieces that are open

  virtual ~PairwiseData() = default;
  virtual std::size_t pieces() const = 0;
  virtual std::size_t largest() const = 0;  // elements of a piece, at most
  virtual std::size_t width() const = 0;    // bytes of an element

  // The piece is begun; its elements / its result is complete. In order.
  virtual std::size_t open(std::size_t piece) = 0;
  virtual void close(std::size_t) {}

  // Where elements [first, first + n) lie together, as this rank brought them; they may be copied to `slot`.
  virtual const char* brought(std::size_t piece, std::size_t first, std::size_t n, char* slot) = 0;
  // Combines them with those of the others, in rank order; others[this rank] means nothing. Where the result lies together.
  virtual const char* combine(std::size_t piece, std::size_t first, std::size_t n, const char* const* others, char* slot) = 0;
  // Where the result of [first, first + n) is to arrive, `slot` if need be / takes it from there.
  virtual char* place(std::size_t piece, std::size_t first, std::size_t n, char* slot) = 0;
  virtual void take(std::size_t, std::size_t, std::size_t, const char*) {}
};

// Without a transport pieces are opened and closed in the same order, and nothing is combined: for a rank that stands by.
void pairwise(Transport* transport, PairwiseData& data, Scratch& scratch);

}  // namespace dl
