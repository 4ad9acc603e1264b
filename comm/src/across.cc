#include "across.h"

#include <algorithm>
#include <vector>

#include "packed.h"
#include "pairwise.h"
#include "pipeline.h"
#include "slice.h"
#include "wire.h"

namespace dl {

std::size_t wire_elements(const Channel& channel, const Reducer& reducer) {
  const auto nodes = static_cast<std::size_t>(channel.layout().nodes);
  return std::max<std::size_t>(1, channel.settings().pipeline_chunk_kb * 1024 * nodes / reducer.acc_width);
}

void over_the_wire(Channel& channel, WireAlgorithm way, const Reducer& reducer, char* acc, std::size_t n) {
  const Settings& settings = channel.settings();
  if (settings.wire_dtype != "same" && worth_packing(reducer, n * reducer.acc_width))
    packed_allreduce(channel.peers(), dtype_named(settings.wire_dtype), reducer, reinterpret_cast<float*>(acc), n,
                     channel.scratch());
  else
    wire_allreduce(channel.peers(), way, reducer, acc, n, channel.scratch());
}

namespace {

// Takes a part's blocks through the stations of pipeline.h, or among few nodes of pairwise.h. `Blocks` says how many there are,
// how many accumulators the largest fills, and does the work on the node: sum(block, accumulators) says how many it filled.
template <class Blocks>
class Accumulators : public PairwiseData {
 public:
  Accumulators(Channel& channel, const Part& part, Blocks& blocks)
      : channel_(channel),
        blocks_(blocks),
        whole_(reducer(part.reducer.acc_type, part.reducer.op, 0)),
        in_(static_cast<std::size_t>(channel.layout().nodes)) {}

  std::size_t pieces() const override { return blocks_.count(); }
  std::size_t largest() const override { return blocks_.largest(); }
  std::size_t width() const override { return whole_.width; }

  std::size_t open(std::size_t k) override {
    return blocks_.sum(k, channel_.layout().owns() ? channel_.accumulators(k % at_once, largest() * width()) : nullptr);
  }
  void close(std::size_t k) override { blocks_.give(k, at(k, 0)); }

  const char* brought(std::size_t k, std::size_t first, std::size_t, char*) override { return at(k, first); }
  char* place(std::size_t k, std::size_t first, std::size_t, char*) override { return at(k, first); }
  const char* combine(std::size_t k, std::size_t first, std::size_t n, const char* const* others, char*) override {
    std::copy(others, others + in_.size(), in_.begin());
    in_[static_cast<std::size_t>(channel_.peers().rank())] = at(k, first);
    void* const out[] = {at(k, first)};
    whole_.reduce(out, 1, 0, in_.data(), static_cast<int>(in_.size()), n, 1.0);
    return at(k, first);
  }

 private:
  char* at(std::size_t k, std::size_t first) {
    return channel_.layout().owns() ? channel_.accumulators(k % at_once, 0) + first * width() : nullptr;
  }

  Channel& channel_;
  Blocks& blocks_;
  const Reducer& whole_;  // of accumulators
  std::vector<const void*> in_;
};

// `way`s other than pairwise block the thread that takes them, so a second one does.
template <class Blocks>
void take_by(WireAlgorithm way, Channel& channel, const Part& part, Blocks& blocks) {
  const bool owns = channel.layout().owns();
  if (way == WireAlgorithm::pairwise && channel.settings().wire_dtype == "same") {
    Accumulators<Blocks> data(channel, part, blocks);
    const Channel::Moving moving(channel);
    pairwise(owns ? &channel.peers() : nullptr, data, channel.scratch());
    return;
  }
  char* acc[2] = {};
  std::size_t held[2] = {};
  if (owns)
    for (std::size_t odd = 0; odd < std::min<std::size_t>(2, blocks.count()); ++odd)
      acc[odd] = channel.accumulators(odd, blocks.largest() * part.reducer.acc_width);
  pipelined(
      blocks.count(), owns ? &channel.progress_thread() : nullptr, [&](std::size_t k) { held[k % 2] = blocks.sum(k, acc[k % 2]); },
      [&](std::size_t k) { over_the_wire(channel, way, part.reducer, acc[k % 2], held[k % 2]); },
      [&](std::size_t k) { blocks.give(k, acc[k % 2]); }, [&] { channel.abandon(); });
}

template <class Blocks>
void take(Channel& channel, const Part& part, Blocks blocks) {
  const std::size_t bytes = part.n * part.reducer.acc_width / static_cast<std::size_t>(channel.layout().owners);
  by_the_best_way(channel, bytes, [&](WireAlgorithm way) { take_by(way, channel, part, blocks); });
}

// A part on its way through the stages of a node. A block is as many of its chunks as the wire takes at once.
class StagedBlocks {
 public:
  // The part's first chunk has been staged as number `chunk`, and all ranks of the node have met since.
  StagedBlocks(Channel& channel, const Part& part, std::uint64_t chunk)
      : channel_(channel), part_(part), step_(channel.stage_bytes() / part.reducer.width), chunk_(chunk) {
    each_ = std::max<std::size_t>(1, slice(step_, channel.layout().owners, 0, part.reducer.width).n);
    chunks_ = std::max<std::size_t>(1, wire_elements(channel, part.reducer) / each_);
  }

  std::size_t count() const { return (part_.n + chunks_ * step_ - 1) / (chunks_ * step_); }
  std::size_t largest() const { return std::min(chunks_, (part_.n + step_ - 1) / step_) * each_; }

  std::size_t sum(std::size_t block, char* acc) {
    std::size_t held = 0;
    for (std::size_t at = begin(block); at < begin(block + 1); at += step_) {
      if (at != part_.first) {
        chunk_ = stage_first(channel_, {part_.flat, at, elements(at), part_.reducer, 1.0});
        channel_.meet();
      }
      held += sum_slice(at, acc + held * part_.reducer.acc_width);
    }
    return held;
  }

  // Buffer c mod 3 is written again for c+3 only after all have met for c+2, which each rank does after it has read c.
  void give(std::size_t block, const char* acc) {
    std::size_t given = 0;
    for (std::size_t at = begin(block); at < begin(block + 1); at += step_) {
      const std::uint64_t chunk = channel_.next_chunk();
      given += give_slice(chunk, at, acc + given * part_.reducer.acc_width);
      channel_.meet();
      fetch_slices(chunk, at);
    }
  }

 private:
  std::size_t end() const { return part_.first + part_.n; }
  std::size_t begin(std::size_t block) const { return std::min(part_.first + block * chunks_ * step_, end()); }
  std::size_t elements(std::size_t at) const { return std::min(step_, end() - at); }
  Slice slice_of(int owner, std::size_t at) const {
    return slice(elements(at), channel_.layout().owners, owner, part_.reducer.width);
  }

  std::size_t sum_slice(std::size_t at, char* acc) {
    const Layout& layout = channel_.layout();
    if (!layout.owns()) return 0;
    const Slice mine = slice_of(layout.local_rank, at);
    std::vector<const void*> in(static_cast<std::size_t>(layout.local_size()));
    std::size_t offset = mine.first * part_.reducer.width;
    part_.flat.sources(at + mine.first, mine.n, [&](const char* own, std::size_t some) {
      for (int j = 0; j < layout.local_size(); ++j) in[static_cast<std::size_t>(j)] = channel_.stage(j, chunk_) + offset;
      in[static_cast<std::size_t>(layout.local_rank)] = own;
      part_.reducer.partial(acc, in.data(), layout.local_size(), some);
      acc += some * part_.reducer.acc_width;
      offset += some * part_.reducer.width;
    });
    return mine.n;
  }

  std::size_t give_slice(std::uint64_t chunk, std::size_t at, const char* acc) {
    const Layout& layout = channel_.layout();
    if (!layout.owns()) return 0;
    const Slice mine = slice_of(layout.local_rank, at);
    const bool others = layout.local_size() > 1;
    std::size_t offset = mine.first * part_.reducer.width;
    part_.flat.stretches(at + mine.first, mine.n, [&](char* own, std::size_t some) {
      void* const out[] = {channel_.stage(layout.local_rank, chunk) + offset, own};
      part_.reducer.finish(others ? out : out + 1, others ? 2 : 1, others ? 1 : 0, acc, some, part_.divisor);
      acc += some * part_.reducer.acc_width;
      offset += some * part_.reducer.width;
    });
    return mine.n;
  }

  void fetch_slices(std::uint64_t chunk, std::size_t at) {
    const Layout& layout = channel_.layout();
    for (int owner = 0; owner < layout.owners; ++owner) {
      if (owner == layout.local_rank) continue;
      const Slice theirs = slice_of(owner, at);
      part_.flat.scatter(channel_.stage(owner, chunk) + theirs.first * part_.reducer.width, at + theirs.first, theirs.n);
    }
  }

  Channel& channel_;
  const Part& part_;
  std::size_t step_, each_, chunks_;  // elements of a chunk; of an owner's slice of it, at most; chunks of a block
  std::uint64_t chunk_;               // the number of the chunk that is being summed
};

// This rank's slices of a part in the arena, in pieces, of which a block holds as many as the wire takes at once.
class ArenaBlocks {
 public:
  ArenaBlocks(const Channel& channel, const Part& part, const Arena& arena)
      : layout_(channel.layout()), part_(part), arena_(arena), places_(static_cast<std::size_t>(layout_.local_size())) {
    const std::size_t most = std::min(wire_elements(channel, part.reducer), part.n), width = part.reducer.width;
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

void staged_across_nodes(Channel& channel, const Part& part, std::uint64_t chunk) {
  take(channel, part, StagedBlocks(channel, part, chunk));
}

void direct_across_nodes(Channel& channel, const Part& part, const Arena& arena) {
  if (channel.layout().owns()) {
    const ArenaBlocks blocks(channel, part, arena);
    if (blocks.count() > 0) take(channel, part, blocks);
  }
  channel.meet();
}

void sum_across_nodes(Channel& channel, const Part& part) {
  part.flat.stretches(part.first, part.n, [&](char* acc, std::size_t n) {
    const WireAlgorithm way = wire_algorithm(channel.settings().wire, n * part.reducer.acc_width, channel.layout().nodes);
    over_the_wire(channel, way, part.reducer, acc, n);
  });
}

}  // namespace dl
