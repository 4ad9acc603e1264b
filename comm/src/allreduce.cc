#include "allreduce.h"

#include <algorithm>
#include <vector>

#include "across.h"
#include "slice.h"

namespace dl {
namespace {

constexpr std::size_t small = 64 * 1024;          // bytes over all ranks that are cheaper to combine n times than to meet twice
constexpr std::size_t past_caches = 256u << 20;   // bytes over all ranks from which results in the arena are streamed to
                                                  // memory; below, a result is stored faster where it was just read from

std::size_t chunk_elements(const Channel& channel, const Part& part) { return channel.stage_bytes() / part.reducer.width; }

// Little data: each rank combines all of it, for itself, and no result has to be fetched from others.
bool is_small(const Channel& channel, const Part& part) {
  const std::size_t bytes = part.n * part.reducer.width;
  return channel.layout().nodes == 1 && bytes <= channel.stage_bytes() &&
         bytes * static_cast<std::size_t>(channel.layout().local_size()) <= small;
}

// Where the inputs and outputs of one stretch of a slice are; reused from stretch to stretch.
struct Places {
  explicit Places(int ranks) : in(static_cast<std::size_t>(ranks)) { out.reserve(in.size()); }
  std::vector<const void*> in;
  std::vector<void*> out;
  int streamed = 0;  // the first so many outputs are written past the caches
};

void combine(const Part& part, const Places& at, std::size_t n) {
  part.reducer.reduce(at.out.data(), static_cast<int>(at.out.size()), at.streamed, at.in.data(),
                      static_cast<int>(at.in.size()), n, part.divisor);
}

// Stages n elements from `first` on: what other ranks combine.
std::uint64_t stage_in(Channel& channel, const Part& part, std::size_t first, std::size_t n) {
  const Layout& layout = channel.layout();
  const std::uint64_t chunk = channel.next_chunk();
  char* const stage = channel.stage(layout.local_rank, chunk);
  const bool all = is_small(channel, part) || !layout.owns();
  const Slice mine = all ? Slice{0, 0} : slice(n, layout.owners, layout.local_rank, part.reducer.width);
  const std::size_t after = mine.first + mine.n;
  part.flat.gather(stage, first, mine.first);
  part.flat.gather(stage + after * part.reducer.width, first + after, n - after);
  return chunk;
}

// Combines this rank's slice of a staged chunk, out of its own arrays and the others' stages, into its own arrays and,
// for the others, its stage.
void combine_staged(Channel& channel, const Part& part, std::uint64_t chunk, std::size_t first, Slice mine, bool for_others) {
  const Layout& layout = channel.layout();
  const std::size_t width = part.reducer.width;
  Places at(layout.local_size());
  std::size_t offset = mine.first * width;
  part.flat.places(first + mine.first, mine.n, [&](const char* from, char* own, std::size_t some) {
    for (int j = 0; j < layout.local_size(); ++j) at.in[static_cast<std::size_t>(j)] = channel.stage(j, chunk) + offset;
    at.in[static_cast<std::size_t>(layout.local_rank)] = from;
    at.out.clear();
    if (for_others) at.out.push_back(channel.stage(layout.local_rank, chunk) + offset);
    at.streamed = for_others ? 1 : 0;
    at.out.push_back(own);
    combine(part, at, some);
    offset += some * width;
  });
}

// For each chunk c there are two meetings: "all have staged c" and "all slices of c are combined". Chunk c+1 is staged
// between the two, so that a rank which waits has something to do:
//
//   stage 0 | combine my slice of 0, stage 1 | fetch 0 ; combine my slice of 1, stage 2 | fetch 1 ; ...
//
// Buffer c mod 3 is staged again for c+3 only after all have met for "staged c+2", which each rank does after fetch c.
void by_slices(Channel& channel, const Part& part, std::uint64_t chunk) {
  const Layout& layout = channel.layout();
  const std::size_t width = part.reducer.width, step = chunk_elements(channel, part), end = part.first + part.n;
  for (std::size_t first = part.first; first < end; first += step) {
    const std::size_t n = std::min(step, end - first);
    if (layout.owns())
      combine_staged(channel, part, chunk, first, slice(n, layout.owners, layout.local_rank, width),
                     layout.local_size() > 1);
    const std::uint32_t combined = channel.arrive();
    std::uint64_t next = 0;
    std::uint32_t staged = 0;
    const bool more = first + n < end;
    if (more) {
      next = stage_in(channel, part, first + n, std::min(step, end - first - n));
      staged = channel.arrive();
    }
    channel.wait(combined);
    for (int owner = 0; owner < layout.owners; ++owner) {
      if (owner == layout.local_rank) continue;
      const Slice theirs = slice(n, layout.owners, owner, width);
      part.flat.scatter(channel.stage(owner, chunk) + theirs.first * width, first + theirs.first, theirs.n);
    }
    if (more) channel.wait(staged);
    chunk = next;
  }
}

}  // namespace

std::uint64_t stage_first(Channel& channel, const Part& part) {
  return stage_in(channel, part, part.first, std::min(part.n, chunk_elements(channel, part)));
}

void allreduce_staged(Channel& channel, const Part& part, std::uint64_t chunk) {
  if (channel.layout().nodes > 1) staged_across_nodes(channel, part, chunk);
  else if (is_small(channel, part)) combine_staged(channel, part, chunk, part.first, {0, part.n}, false);
  else by_slices(channel, part, chunk);
}

// Each stretch of contiguous memory is cut into slices of its own; no rank waits for another before the end.
void allreduce_direct(Channel& channel, const Part& part, const Arena& arena) {
  const Layout& layout = channel.layout();
  if (layout.nodes > 1) return direct_across_nodes(channel, part, arena);
  const std::size_t width = part.reducer.width;
  const auto ranks = static_cast<std::size_t>(layout.local_size());
  const bool stream = part.flat.size() * width * ranks > past_caches;
  Places at(layout.local_size());
  at.out.resize(ranks);
  at.streamed = stream ? layout.local_size() : 0;
  if (layout.owns())
    part.flat.stretches(part.first, part.n, [&](char* stretch, std::size_t n) {
      const std::ptrdiff_t stride = arena.stride(stretch);
      const Slice mine = slice(n, layout.owners, layout.local_rank, width);
      if (mine.n == 0) return;
      char* const here = stretch + mine.first * width;
      for (int j = 0; j < layout.local_size(); ++j)
        at.in[static_cast<std::size_t>(j)] = at.out[static_cast<std::size_t>(j)] = here + (j - layout.local_rank) * stride;
      combine(part, at, mine.n);
    });
  channel.meet();
}

}  // namespace dl
