#include "alone.h"

#include <algorithm>
#include <cstddef>

#include "across.h"
#include "little.h"
#include "pairwise.h"

namespace dl {
namespace {


// The accumulators of elements [first, first + n), which need no adding here / back into the arrays.
void load(const Part& part, std::size_t first, std::size_t n, char* acc) {
  part.flat.sources(first, n, [&](const char* own, std::size_t some) {
    const void* const in[] = {own};
    part.reducer.partial(acc, in, 1, some);
    acc += some * part.reducer.acc_width;
  });
}

void unload(const Part& part, std::size_t first, std::size_t n, const char* acc) {
  part.flat.stretches(first, n, [&](char* own, std::size_t some) {
    void* const out[] = {own};
    part.reducer.finish(out, 1, 0, acc, some, part.divisor);
    acc += some * part.reducer.acc_width;
  });
}

// Where elements [first, first + n) lie, if they lie together: where they are read, and where they are written.
struct Together {
  const char* source;
  char* at;
};
Together together(const Part& part, std::size_t first, std::size_t n) {
  Together found{nullptr, nullptr};
  part.flat.places(first, n, [&](const char* from, char* own, std::size_t some) {
    found = some == n ? Together{from, own} : Together{nullptr, nullptr};
  });
  return found;
}

// A part on its way between the nodes, element by element.
class Elements : public PairwiseData {
 public:
  Elements(const Part& part, const Transport& peers)
      : part_(part), rank_(static_cast<std::size_t>(peers.rank())), in_(static_cast<std::size_t>(peers.size())) {
    const std::size_t most = Transport::piece / width() * in_.size();
    count_ = (part.n + most - 1) / most;
    each_ = count_ == 0 ? 0 : ((part.n + count_ - 1) / count_ + 63) / 64 * 64;  // alike, at whole cache lines
    if (each_ > 0) count_ = (part.n + each_ - 1) / each_;
  }

  std::size_t pieces() const override { return count_; }
  std::size_t largest() const override { return each_; }
  std::size_t width() const override { return part_.reducer.width; }
  std::size_t open(std::size_t k) override { return std::min(each_, part_.n - k * each_); }

  const char* brought(std::size_t k, std::size_t first, std::size_t n, char* slot) override {
    if (const char* at = together(part_, begin(k) + first, n).source) return at;
    part_.flat.sources(begin(k) + first, n, [&, to = slot](const char* own, std::size_t some) mutable {
      to = std::copy_n(own, some * width(), to);
    });
    return slot;
  }

  const char* combine(std::size_t k, std::size_t first, std::size_t n, const char* const* others, char* slot) override {
    char* const at = together(part_, begin(k) + first, n).at;
    std::size_t offset = 0;
    part_.flat.places(begin(k) + first, n, [&](const char* from, char* own, std::size_t some) {
      for (std::size_t rank = 0; rank < in_.size(); ++rank) in_[rank] = rank == rank_ ? from : others[rank] + offset;
      void* const out[] = {own, slot + offset};
      part_.reducer.reduce(out, at == nullptr ? 2 : 1, 0, in_.data(), static_cast<int>(in_.size()), some, part_.divisor);
      offset += some * width();
    });
    return at == nullptr ? slot : at;
  }

  char* place(std::size_t k, std::size_t first, std::size_t n, char* slot) override {
    char* const at = together(part_, begin(k) + first, n).at;
    return at == nullptr ? slot : at;
  }

  void take(std::size_t k, std::size_t first, std::size_t n, const char* from) override {
    part_.flat.scatter(from, begin(k) + first, n);
  }

 private:
  std::size_t begin(std::size_t k) const { return part_.first + k * each_; }

  const Part& part_;
  std::size_t rank_, count_ = 0, each_ = 0;  // pieces, elements of one
  std::vector<const void*> in_;
};

// Elements [first, first + n) of a part become those of both ranks, of which `theirs` are the other's.
void combine_with(Channel& channel, const Part& part, std::size_t first, std::size_t n, const char* theirs) {
  const bool lower = channel.peers().rank() == 0;
  part.flat.places(part.first + first, n, [&](const char* from, char* own, std::size_t some) {
    const void* const in[] = {lower ? from : theirs, lower ? theirs : from};
    void* const out[] = {own};
    part.reducer.reduce(out, 1, 0, in, 2, some, part.divisor);
    theirs += some * part.reducer.width;
  });
}

// Two ranks swap all they have, and each combines it.
void by_swapping(Channel& channel, const Part& part) {
  const std::size_t width = part.reducer.width;
  const int rank = channel.peers().rank();
  const auto give = [&](std::size_t first, std::size_t bytes, char* slot) -> const char* {
    const std::size_t from = part.first + first / width, n = bytes / width;
    if (const char* at = together(part, from, n).source) return at;
    part.flat.sources(from, n, [&, to = slot](const char* own, std::size_t some) mutable { to = std::copy_n(own, some * width, to); });
    return slot;
  };
  const auto come = [&](std::size_t first, std::size_t bytes, const char* theirs) {
    combine_with(channel, part, first / width, bytes / width, theirs);
  };
  channel.peers().swap(part.n * width, 1 - rank, channel.scratch(), give, come);
}

void by_slices(Channel& channel, const Part& part) {
  Elements elements(part, channel.peers());
  pairwise(&channel.peers(), elements, channel.scratch());
}

void by_blocks(WireAlgorithm way, Channel& channel, const Part& part) {
  const std::size_t most = wire_elements(channel, part.reducer), end = part.first + part.n;
  for (std::size_t first = part.first; first < end; first += most) {
    const std::size_t n = std::min(most, end - first);
    // What is as wide as its accumulators is one.
    const Together at = together(part, first, n);
    const bool in_place = part.reducer.width == part.reducer.acc_width && at.at != nullptr && at.at == at.source;
    char* acc = at.at;
    if (!in_place) {
      acc = channel.accumulators(0, std::min(most, part.n) * part.reducer.acc_width);
      load(part, first, n, acc);
    }
    over_the_wire(channel, way, part.reducer, acc, n);
    if (!in_place || part.divisor != 1.0) unload(part, first, n, acc);
  }
}

// How two ranks agree and swap a whole part at once, in one round trip. Whether they do depends on what the message is about alone.
bool goes_straight(const Channel& channel, const Part& part) {
  const std::size_t bytes = part.n * part.reducer.width;
  const Settings& settings = channel.settings();
  return channel.layout().nodes == 2 && settings.wire.empty() && settings.wire_dtype == "same" && bytes >= worth_a_message &&
         bytes <= most_behind;
}

void agree_swapping(Channel& channel, const Message& message, const Part& part) {
  const std::size_t bytes = part.n * part.reducer.width;
  const char* at = together(part, part.first, part.n).source;
  if (at == nullptr) {
    char* const copy = channel.accumulators(0, bytes);
    part.flat.gather(copy, part.first, part.n);
    at = copy;
  }
  const Straight straight{at, bytes, [&](const char* theirs) { combine_with(channel, part, 0, part.n, theirs); }};
  channel.agree(message, 0, nullptr, &straight);
}

// How many elements of the first part have been combined once the ranks agree.
std::size_t agree_ahead(Channel& channel, const Message& message, const std::vector<Part>& parts) {
  if (!parts.empty() && goes_straight(channel, parts.front())) {
    agree_swapping(channel, message, parts.front());
    return parts.front().n;
  }
  const std::size_t ahead = parts.empty() ? 0 : carried(channel, parts.front());
  if (ahead == 0) channel.agree(message, 0);
  else agree_carrying(channel, message, parts.front(), ahead);
  return ahead;
}

}  // namespace

void allreduce_alone(Channel& channel, const Message& message, const std::vector<Part>& parts) {
  const std::size_t ahead = agree_ahead(channel, message, parts);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t done = i == 0 ? ahead : 0;
    const Part& all = parts[i];
    const Part rest{all.flat, all.first + done, all.n - done, all.reducer, all.divisor};
    if (rest.n == 0) continue;
    const bool plain = channel.settings().wire_dtype == "same";
    by_the_best_way(channel, rest.n * rest.reducer.width, [&](WireAlgorithm way) {
      if (plain && way == WireAlgorithm::pairwise) by_slices(channel, rest);
      else if (plain && way == WireAlgorithm::doubling && channel.layout().nodes == 2) by_swapping(channel, rest);
      else by_blocks(way, channel, rest);
    });
  }
}

}  // namespace dl
