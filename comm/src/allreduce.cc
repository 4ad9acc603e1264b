#include "allreduce.h"

#include <algorithm>
#include <vector>

#include "wire.h"

namespace dl {
namespace {

constexpr std::size_t line = 64;                  // bytes of a cache line: slices do not share one
constexpr std::size_t small = 64 * 1024;          // bytes over all ranks that are cheaper to combine twice than to meet twice
constexpr std::size_t past_caches = 8u << 20;     // bytes over all ranks from which results are streamed to memory

struct Slice {
  std::size_t first, n;
};

// Slice `i` of n elements, cut for `owners`.
Slice slice(std::size_t n, int owners, int i, std::size_t width) {
  const auto parts = static_cast<std::size_t>(owners), at = static_cast<std::size_t>(i);
  const std::size_t grain = line / width;
  const std::size_t each = ((n + parts - 1) / parts + grain - 1) / grain * grain;
  const std::size_t first = std::min(at * each, n);
  return {first, std::min(each, n - first)};
}

std::size_t chunk_elements(const Lane& lane, const Part& part) { return lane.stage_bytes() / part.reducer.width; }

std::uint64_t stage_in(Lane& lane, const Part& part, std::size_t first, std::size_t n) {
  const std::uint64_t chunk = lane.next_chunk();
  part.flat.gather(lane.stage(lane.layout().local_rank, chunk), first, n);
  return chunk;
}

// Combines n elements over the ranks of the node, and of the other nodes, into `out`.
void combine(Lane& lane, const Part& part, const std::vector<const void*>& in, const std::vector<void*>& out,
             std::size_t n, bool stream) {
  const int n_in = static_cast<int>(in.size()), n_out = static_cast<int>(out.size());
  if (lane.layout().nodes == 1) {
    part.reducer.reduce(out.data(), n_out, in.data(), n_in, n, part.divisor, stream);
    return;
  }
  std::vector<char>& acc = lane.accumulators(n * part.reducer.acc_width);
  part.reducer.partial(acc.data(), in.data(), n_in, n);
  wire_allreduce(lane.peers(), part.reducer, acc.data(), n, lane.scratch());
  part.reducer.finish(out.data(), n_out, acc.data(), n, part.divisor, stream);
}

// Little data: each rank combines all of it, for itself, and no second meeting is needed.
void combine_small(Lane& lane, const Part& part, std::uint64_t chunk) {
  const int ranks = lane.layout().local_size();
  std::vector<const void*> in(static_cast<std::size_t>(ranks));
  std::size_t done = 0;
  part.flat.stretches(part.first, part.n, [&](char* to, std::size_t some) {
    for (int j = 0; j < ranks; ++j) in[static_cast<std::size_t>(j)] = lane.stage(j, chunk) + done * part.reducer.width;
    void* out = to;
    part.reducer.reduce(&out, 1, in.data(), ranks, some, part.divisor, false);
    done += some;
  });
}

}  // namespace

std::uint64_t stage_first(Lane& lane, const Part& part) {
  return stage_in(lane, part, part.first, std::min(part.n, chunk_elements(lane, part)));
}

// For each chunk c there are two meetings: "all have staged c" and "all slices of c are combined". Chunk c+1 is staged
// between the two, so that a rank which waits has something to do:
//
//   stage 0 | combine my slice of 0, stage 1 | fetch 0 ; combine my slice of 1, stage 2 | fetch 1 ; ...
//
// Buffer c mod 3 is staged again for c+3 only after all have met for "staged c+2", which each rank does after fetch c.
void allreduce_staged(Lane& lane, const Part& part, std::uint64_t chunk) {
  const Layout& layout = lane.layout();
  const std::size_t width = part.reducer.width, step = chunk_elements(lane, part), end = part.first + part.n;
  if (layout.nodes == 1 && part.n <= step &&
      part.n * width * static_cast<std::size_t>(layout.local_size()) <= small) {
    combine_small(lane, part, chunk);
    return;
  }
  std::vector<const void*> in(static_cast<std::size_t>(layout.local_size()));
  std::vector<void*> out(1);
  for (std::size_t first = part.first; first < end; first += step) {
    const std::size_t n = std::min(step, end - first);
    if (layout.owns()) {
      const Slice mine = slice(n, layout.owners, layout.local_rank, width);
      for (int j = 0; j < layout.local_size(); ++j)
        in[static_cast<std::size_t>(j)] = lane.stage(j, chunk) + mine.first * width;
      out[0] = lane.stage(layout.local_rank, chunk) + mine.first * width;
      combine(lane, part, in, out, mine.n, false);
    }
    const std::uint32_t combined = lane.arrive();
    std::uint64_t next = 0;
    std::uint32_t staged = 0;
    const bool more = first + n < end;
    if (more) {
      next = stage_in(lane, part, first + n, std::min(step, end - first - n));
      staged = lane.arrive();
    }
    lane.wait(combined);
    for (int owner = 0; owner < layout.owners; ++owner) {
      const Slice theirs = slice(n, layout.owners, owner, width);
      part.flat.scatter(lane.stage(owner, chunk) + theirs.first * width, first + theirs.first, theirs.n);
    }
    if (more) lane.wait(staged);
    chunk = next;
  }
}

// Each stretch of contiguous memory is cut into slices of its own; no rank waits for another before the end.
void allreduce_direct(Lane& lane, const Part& part, const Arena& arena) {
  const Layout& layout = lane.layout();
  const std::size_t width = part.reducer.width;
  const auto ranks = static_cast<std::size_t>(layout.local_size());
  const bool stream = part.flat.size() * width * ranks > past_caches;
  const std::size_t most = layout.nodes == 1 ? part.n : std::max<std::size_t>(1, lane.settings().pipeline_chunk_kb * 1024 / width);
  std::vector<const void*> in(ranks);
  std::vector<void*> out(ranks);
  if (layout.owns())
    part.flat.stretches(part.first, part.n, [&](char* at, std::size_t n) {
      const std::ptrdiff_t stride = arena.stride(at);
      const Slice mine = slice(n, layout.owners, layout.local_rank, width);
      for (std::size_t done = 0; done < mine.n; done += most) {
        char* const here = at + (mine.first + done) * width;
        for (int j = 0; j < layout.local_size(); ++j)
          in[static_cast<std::size_t>(j)] = out[static_cast<std::size_t>(j)] = here + (j - layout.local_rank) * stride;
        combine(lane, part, in, out, std::min(most, mine.n - done), stream);
      }
    });
  lane.meet();
}

}  // namespace dl
