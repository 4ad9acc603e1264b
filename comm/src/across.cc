#include "across.h"

#include <algorithm>
#include <vector>

#include "packed.h"
#include "pipeline.h"
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

// Takes a part's blocks through the stations of pipeline.h. `Blocks` says how many there are, how many accumulators the
// largest fills, and does the work on the node: sum(block, accumulators) says how many it filled.
template <class Blocks>
void take(Lane& lane, const Part& part, Blocks blocks) {
  const bool owns = lane.layout().owns();
  char* acc[2] = {};
  std::size_t held[2] = {};
  if (owns)
    for (std::size_t odd = 0; odd < std::min<std::size_t>(2, blocks.count()); ++odd)
      acc[odd] = lane.accumulators(odd, blocks.largest() * part.reducer.acc_width);
  pipelined(
      blocks.count(), owns ? &lane.courier() : nullptr, [&](std::size_t k) { held[k % 2] = blocks.sum(k, acc[k % 2]); },
      [&](std::size_t k) { over_the_wire(lane, part, acc[k % 2], held[k % 2]); },
      [&](std::size_t k) { blocks.give(k, acc[k % 2]); }, [&] { lane.abandon(); });
}

// A part on its way through the stages of a node. A block is as many of its chunks as the wire takes at once.
class StagedBlocks {
 public:
  // The part's first chunk has been staged as number `chunk`, and all ranks of the node have met since.
  StagedBlocks(Lane& lane, const Part& part, std::uint64_t chunk)
      : lane_(lane), part_(part), step_(lane.stage_bytes() / part.reducer.width), chunk_(chunk) {
    each_ = std::max<std::size_t>(1, slice(step_, lane.layout().owners, 0, part.reducer.width).n);
    chunks_ = std::max<std::size_t>(1, wire_elements(lane, part.reducer) / each_);
  }

  std::size_t count() const { return (part_.n + chunks_ * step_ - 1) / (chunks_ * step_); }
  std::size_t largest() const { return std::min(chunks_, (part_.n + step_ - 1) / step_) * each_; }

  std::size_t sum(std::size_t block, char* acc) {
    std::size_t held = 0;
    for (std::size_t at = begin(block); at < begin(block + 1); at += step_) {
      if (at != part_.first) {
        chunk_ = stage_first(lane_, {part_.flat, at, elements(at), part_.reducer, 1.0});
        lane_.meet();
      }
      held += sum_slice(at, acc + held * part_.reducer.acc_width);
    }
    return held;
  }

  // Buffer c mod 3 is written again for c+3 only after all have met for c+2, which each rank does after it has read c.
  void give(std::size_t block, const char* acc) {
    std::size_t given = 0;
    for (std::size_t at = begin(block); at < begin(block + 1); at += step_) {
      const std::uint64_t chunk = lane_.next_chunk();
      given += give_slice(chunk, at, acc + given * part_.reducer.acc_width);
      lane_.meet();
      fetch_slices(chunk, at);
    }
  }

 private:
  std::size_t end() const { return part_.first + part_.n; }
  std::size_t begin(std::size_t block) const { return std::min(part_.first + block * chunks_ * step_, end()); }
  std::size_t elements(std::size_t at) const { return std::min(step_, end() - at); }
  Slice slice_of(int owner, std::size_t at) const {
    return slice(elements(at), lane_.layout().owners, owner, part_.reducer.width);
  }

  std::size_t sum_slice(std::size_t at, char* acc) {
    const Layout& layout = lane_.layout();
    if (!layout.owns()) return 0;
    const Slice mine = slice_of(layout.local_rank, at);
    std::vector<const void*> in(static_cast<std::size_t>(layout.local_size()));
    std::size_t offset = mine.first * part_.reducer.width;
    part_.flat.stretches(at + mine.first, mine.n, [&](const char* own, std::size_t some) {
      for (int j = 0; j < layout.local_size(); ++j) in[static_cast<std::size_t>(j)] = lane_.stage(j, chunk_) + offset;
      in[static_cast<std::size_t>(layout.local_rank)] = own;
      part_.reducer.partial(acc, in.data(), layout.local_size(), some);
      acc += some * part_.reducer.acc_width;
      offset += some * part_.reducer.width;
    });
    return mine.n;
  }

  std::size_t give_slice(std::uint64_t chunk, std::size_t at, const char* acc) {
    const Layout& layout = lane_.layout();
    if (!layout.owns()) return 0;
    const Slice mine = slice_of(layout.local_rank, at);
    const bool others = layout.local_size() > 1;
    std::size_t offset = mine.first * part_.reducer.width;
    part_.flat.stretches(at + mine.first, mine.n, [&](char* own, std::size_t some) {
      void* const out[] = {lane_.stage(layout.local_rank, chunk) + offset, own};
      part_.reducer.finish(others ? out : out + 1, others ? 2 : 1, others ? 1 : 0, acc, some, part_.divisor);
      acc += some * part_.reducer.acc_width;
      offset += some * part_.reducer.width;
    });
    return mine.n;
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
  std::size_t step_, each_, chunks_;  // elements of a chunk; of an owner's slice of it, at most; chunks of a block
  std::uint64_t chunk_;               // the number of the chunk that is being summed
};

// This rank's slices of a part in the arena, in pieces, of which a block holds as many as the wire takes at once.
class ArenaBlocks {
 public:
  ArenaBlocks(const Lane& lane, const Part& part, const Arena& arena)
      : layout_(lane.layout()), part_(part), arena_(arena), places_(static_cast<std::size_t>(layout_.local_size())) {
    const std::size_t most = std::min(wire_elements(lane, part.reducer), part.n), width = part.reducer.width;
    std::size_t held = most;
    part.flat.stretches(part.first, part.n, [&](char* stretch, std::size_t n) {
      const Slice mine = slice(n, layout_.owners, layout_.local_rank, width);
      for (std::size_t done = 0; done < mine.n; done += pieces_.back().n) {
        const Piece piece{stretch + (mine.first + done) * width, std::min(most, mine.n - done)};
        if (held + piece.n > most) {
          starts_.push_back(pieces_.size());
          held = 0;
        }
        held += piece.n;
        largest_ = std::max(largest_, held);
        pieces_.push_back(piece);
      }
    });
  }

  std::size_t count() const { return starts_.size(); }
  std::size_t largest() const { return largest_; }

  std::size_t sum(std::size_t block, char* acc) {
    return visit(block, [&](const Piece& piece, std::size_t held) {
      part_.reducer.partial(acc + held * part_.reducer.acc_width, const_cast<const void* const*>(places_.data()),
                            layout_.local_size(), piece.n);
    });
  }

  void give(std::size_t block, const char* acc) {
    visit(block, [&](const Piece& piece, std::size_t held) {
      part_.reducer.finish(places_.data(), layout_.local_size(), 0, acc + held * part_.reducer.acc_width, piece.n,
                           part_.divisor);
    });
  }

 private:
  struct Piece {
    char* at;
    std::size_t n;
  };

  // Calls work(piece, elements before it in the block) for each piece, with the ranks' places of it in places_.
  template <class Work>
  std::size_t visit(std::size_t block, Work work) {
    const std::size_t end = block + 1 < starts_.size() ? starts_[block + 1] : pieces_.size();
    std::size_t held = 0;
    for (std::size_t i = starts_[block]; i < end; ++i) {
      const std::ptrdiff_t stride = arena_.stride(pieces_[i].at);
      for (int j = 0; j < layout_.local_size(); ++j)
        places_[static_cast<std::size_t>(j)] = pieces_[i].at + (j - layout_.local_rank) * stride;
      work(pieces_[i], held);
      held += pieces_[i].n;
    }
    return held;
  }

  const Layout& layout_;
  const Part& part_;
  const Arena& arena_;
  std::vector<Piece> pieces_;
  std::vector<std::size_t> starts_;  // the first piece of each block
  std::size_t largest_ = 0;
  std::vector<void*> places_;
};

}  // namespace

void staged_across_nodes(Lane& lane, const Part& part, std::uint64_t chunk) {
  take(lane, part, StagedBlocks(lane, part, chunk));
}

void direct_across_nodes(Lane& lane, const Part& part, const Arena& arena) {
  if (lane.layout().owns()) {
    const ArenaBlocks blocks(lane, part, arena);
    if (blocks.count() > 0) take(lane, part, blocks);
  }
  lane.meet();
}

void sum_across_nodes(Lane& lane, const Part& part) {
  part.flat.stretches(part.first, part.n, [&](char* acc, std::size_t n) { over_the_wire(lane, part, acc, n); });
}

}  // namespace dl
