// Memory of the node for gradients: what lies in it is reduced where it lies, with no copy.
//
// Every rank has a part of each block, at the same distance from the block's base; a rank finds another's by adding a
// multiple of the stride. Blocks live as long as the process: views of them may.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "message.h"
#include "segment.h"

namespace dl {

class Arena {
 public:
  // A block of which every rank of the node has `bytes`, at stride `stride`. Returns this rank's part.
  char* add(std::shared_ptr<Segment> segment, int local_rank, std::size_t bytes, std::size_t stride);

  // A number for where the buffers lie, equal on two ranks if and only if they lie at the same places; 0 if any of
  // them does not lie in the arena, or if there are none.
  std::uint64_t place(const std::vector<Buffer>& buffers) const;

  // The distance from `address` on this rank to the same place of the next local rank.
  std::ptrdiff_t stride(const char* address) const;

 private:
  struct Block {
    std::shared_ptr<Segment> segment;
    char* mine;
    std::size_t bytes;
    std::size_t stride;
  };
  const Block* holding(const char* address, std::size_t bytes) const;

  mutable std::mutex guard_;
  std::vector<Block> blocks_;  // guarded by guard_
};

}  // namespace dl
