#include "across.h"

#include <algorithm>
#include <vector>

#include "packed.h"
#include "slice.h"
#include "wire.h"

namespace dl {
namespace {

// Accumulators that one owner takes over the wire at once.
std::size_t wire_elements(const Lane& lane, const Reducer& reducer) {
  const auto nodes = static_cast<std::size_t>(lane.layout().nodes);
  return std::max<std::size_t>(1, lane.settings().pipeline_chunk_kb * 1024 * nodes / reducer.acc_width);
}

void over_the_wire(Lane& lane, const Part& part, char* acc, std::size_t n) {
  const Settings& settings = lane.settings();
  if (settings.wire_dtype != "same" && worth_packing(part.reducer, n * part.reducer.acc_width))
    packed_allreduce(lane.peers(), dtype_named(settings.wire_dtype), part.reducer, reinterpret_cast<float*>(acc), n,
                     lane.scratch());
  else
    wire_allreduce(lane.peers(), settings.wire, part.reducer, acc, n, lane.scratch());
}

// Some chunks of a part, as many as the wire takes at once, on their way through the stages of a node.
class Block {
 public:
  // The elements from `first` on.
  Block(Lane& lane, const Part& part, std::size_t first)
      : lane_(lane), part_(part), first_(first), step_(lane.stage_bytes() / part.reducer.width) {
    const Layout& layout = lane.layout();
    const std::size_t each = std::max<std::size_t>(1, slice(step_, layout.owners, 0, part.reducer.width).n);
    const std::size_t chunks = std::max<std::size_t>(1, wire_elements(lane, part.reducer) / each);
    end_ = std::min(first + chunks * step_, part.first + part.n);
    if (layout.owns()) acc_ = lane.accumulators(chunks * each * part.reducer.acc_width);
  }

  std::size_t end() const { return end_; }

  // The first chunk is staged, and all ranks of the node have met since.
  void reduce(std::uint64_t chunk) {
    for (std::size_t at = first_; at < end_; at += step_) {
      sum_slice(chunk, at);
      if (at + step_ >= end_) break;
      chunk = stage_first(lane_, {part_.flat, at + step_, std::min(step_, end_ - at - step_), part_.reducer, 1.0});
      lane_.meet();
    }
    if (lane_.layout().owns()) over_the_wire(lane_, part_, acc_, held_);
  }

  // Buffer c mod 3 is written again for c+3 only after all have met for c+2, which each rank does after fetching c.
  void share() {
    held_ = 0;
    for (std::size_t at = first_; at < end_; at += step_) {
      const std::uint64_t chunk = lane_.next_chunk();
      give_slice(chunk, at);
      lane_.meet();
      fetch_slices(chunk, at);
    }
  }

 private:
  std::size_t elements(std::size_t at) const { return std::min(step_, end_ - at); }
  Slice slice_of(int owner, std::size_t at) const {
    return slice(elements(at), lane_.layout().owners, owner, part_.reducer.width);
  }

  void sum_slice(std::uint64_t chunk, std::size_t at) {
    const Layout& layout = lane_.layout();
    if (!layout.owns()) return;
    const Slice mine = slice_of(layout.local_rank, at);
    std::vector<const void*> in(static_cast<std::size_t>(layout.local_size()));
    std::size_t offset = mine.first * part_.reducer.width;
    part_.flat.stretches(at + mine.first, mine.n, [&](const char* own, std::size_t some) {
      for (int j = 0; j < layout.local_size(); ++j) in[static_cast<std::size_t>(j)] = lane_.stage(j, chunk) + offset;
      in[static_cast<std::size_t>(layout.local_rank)] = own;
      part_.reducer.partial(acc_ + held_ * part_.reducer.acc_width, in.data(), layout.local_size(), some);
      held_ += some;
      offset += some * part_.reducer.width;
    });
  }

  void give_slice(std::uint64_t chunk, std::size_t at) {
    const Layout& layout = lane_.layout();
    if (!layout.owns()) return;
    const Slice mine = slice_of(layout.local_rank, at);
    const bool others = layout.local_size() > 1;
    std::size_t offset = mine.first * part_.reducer.width;
    part_.flat.stretches(at + mine.first, mine.n, [&](char* own, std::size_t some) {
      void* const out[] = {lane_.stage(layout.local_rank, chunk) + offset, own};
      part_.reducer.finish(others ? out : out + 1, others ? 2 : 1, others ? 1 : 0,
                           acc_ + held_ * part_.reducer.acc_width, some, part_.divisor);
      held_ += some;
      offset += some * part_.reducer.width;
    });
  }

  void fetch_slices(std::uint64_t chunk, std::size_t at) {
    const Layout& layout = lane_.layout();
    for (int owner = 0; owner < layout.owners; ++owner) {
      if (owner == layout.local_rank) continue;
      const Slice theirs = slice_of(owner, at);
      part_.flat.scatter(lane_.stage(owner, chunk) + theirs.first * part_.reducer.width, at + theirs.first, theirs.n);
    }
  }

  Lane& lane_;
  const Part& part_;
  std::size_t first_, step_, end_;
  char* acc_ = nullptr;
  std::size_t held_ = 0;  // accumulators filled, or given back
};

// A stretch of this rank's slice in the arena.
struct Piece {
  char* at;
  std::size_t n;
};

// The pieces of this rank's slices, in order, each no longer than `most`.
std::vector<Piece> own_pieces(const Lane& lane, const Part& part, std::size_t most) {
  const Layout& layout = lane.layout();
  const std::size_t width = part.reducer.width;
  std::vector<Piece> pieces;
  part.flat.stretches(part.first, part.n, [&](char* stretch, std::size_t n) {
    const Slice mine = slice(n, layout.owners, layout.local_rank, width);
    for (std::size_t done = 0; done < mine.n; done += most)
      pieces.push_back({stretch + (mine.first + done) * width, std::min(most, mine.n - done)});
  });
  return pieces;
}

// Sums pieces [from, to) over the node, over the wire, and gives the result to all ranks of the node.
void reduce_pieces(Lane& lane, const Part& part, const Arena& arena, const Piece* from, const Piece* to, char* acc) {
  const Layout& layout = lane.layout();
  const std::size_t width = part.reducer.acc_width;
  std::vector<void*> places(static_cast<std::size_t>(layout.local_size()));
  auto look = [&](const Piece& piece) {
    const std::ptrdiff_t stride = arena.stride(piece.at);
    for (int j = 0; j < layout.local_size(); ++j)
      places[static_cast<std::size_t>(j)] = piece.at + (j - layout.local_rank) * stride;
  };
  std::size_t held = 0;
  for (const Piece* piece = from; piece != to; ++piece) {
    look(*piece);
    part.reducer.partial(acc + held * width, const_cast<const void* const*>(places.data()), layout.local_size(), piece->n);
    held += piece->n;
  }
  over_the_wire(lane, part, acc, held);
  held = 0;
  for (const Piece* piece = from; piece != to; ++piece) {
    look(*piece);
    part.reducer.finish(places.data(), layout.local_size(), 0, acc + held * width, piece->n, part.divisor);
    held += piece->n;
  }
}

}  // namespace

void staged_across_nodes(Lane& lane, const Part& part, std::uint64_t chunk) {
  const std::size_t end = part.first + part.n;
  for (std::size_t first = part.first; first < end;) {
    Block block(lane, part, first);
    block.reduce(chunk);
    block.share();
    first = block.end();
    if (first == end) return;
    chunk = stage_first(lane, {part.flat, first, end - first, part.reducer, 1.0});
    lane.meet();
  }
}

void direct_across_nodes(Lane& lane, const Part& part, const Arena& arena) {
  if (lane.layout().owns()) {
    const std::size_t most = std::min(wire_elements(lane, part.reducer), part.n);
    char* const acc = lane.accumulators(most * part.reducer.acc_width);
    const std::vector<Piece> pieces = own_pieces(lane, part, most);
    for (std::size_t from = 0, to = 0; from < pieces.size(); from = to) {
      std::size_t held = 0;
      for (to = from; to < pieces.size() && held + pieces[to].n <= most; ++to) held += pieces[to].n;
      reduce_pieces(lane, part, arena, pieces.data() + from, pieces.data() + to, acc);
    }
  }
  lane.meet();
}

}  // namespace dl
