#include "arena.h"

#include "error.h"

namespace dl {

char* Arena::add(std::shared_ptr<Segment> segment, int local_rank, std::size_t bytes, std::size_t stride) {
  char* mine = segment->base() + static_cast<std::size_t>(local_rank) * stride;
  const std::lock_guard<std::mutex> lock(guard_);
  blocks_.push_back({std::move(segment), mine, bytes, stride});
  return mine;
}

const Arena::Block* Arena::holding(const char* address, std::size_t bytes) const {
  for (const Block& block : blocks_)
    if (address >= block.mine && address + bytes <= block.mine + block.bytes) return &block;
  return nullptr;
}

std::uint64_t Arena::place(const std::vector<Buffer>& buffers) const {
  const std::lock_guard<std::mutex> lock(guard_);
  if (blocks_.empty()) return 0;
  std::uint64_t hash = 0;
  for (const Buffer& buffer : buffers) {
    if (buffer.count == 0) continue;
    const Block* block = holding(buffer.data, buffer.count * width(buffer.dtype));
    if (block == nullptr) return 0;
    const auto offset = static_cast<std::uint64_t>(buffer.data - block->mine);
    hash = (hash ^ (offset + static_cast<std::uint64_t>(block - blocks_.data()) * 0x9e3779b97f4a7c15u)) * 0xff51afd7ed558ccdu;
    hash = (hash ^ (hash >> 33)) | 1;
  }
  return hash;
}

std::ptrdiff_t Arena::stride(const char* address) const {
  const std::lock_guard<std::mutex> lock(guard_);
  const Block* block = holding(address, 1);
  if (block == nullptr) throw CommError("an array has left the arena while it was being reduced");
  return static_cast<std::ptrdiff_t>(block->stride);
}

}  // namespace dl
