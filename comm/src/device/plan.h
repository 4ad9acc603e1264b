// Which elements are which chunks on their way through the host's memory. Chunk i is combined by thread i modulo their
// number.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "flat.h"

namespace dl {

struct Plan {
  struct Chunk {
    const Flat& flat;
    std::size_t first, n;
  };

  // Into as many chunks as `length` elements take; those beyond the end are empty. Their number has to be the same on all
  // ranks of a node, which find each other's chunks by it.
  void cut(const Flat& flat, std::size_t length, std::size_t chunk_bytes) {
    const std::size_t step = std::max<std::size_t>(1, chunk_bytes / width(flat.dtype()));
    for (std::size_t first = 0; first < length; first += step)
      chunks.push_back({flat, first, std::min(step, flat.size() - std::min(first, flat.size()))});
  }

  std::deque<Flat> flats;  // that the chunks are of
  std::vector<Chunk> chunks;
  std::vector<std::uint32_t> begin;  // of each pipeline: the number of its first chunk
};

}  // namespace dl
