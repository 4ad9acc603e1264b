#include "pairwise.h"

#include <algorithm>
#include <array>
#include <vector>

#include "slice.h"

namespace dl {
namespace {

constexpr std::size_t ahead = 2;  // pieces on the wire before one is combined

class Pairwise {
 public:
  Pairwise(Transport& transport, PairwiseData& data, Scratch& scratch)
      : transport_(transport),
        data_(data),
        size_(transport.size()),
        rank_(transport.rank()),
        width_(data.width()),
        slot_(slice(data.largest(), size_, 0, data.width()).n * data.width()),
        memory_(scratch.at_least(ahead * slots() * slot_)),
        others_(static_cast<std::size_t>(size_)) {}

  void run() {
    const Flight flight(transport_);
    const std::size_t pieces = data_.pieces();
    for (std::size_t k = 0; k < std::min(ahead, pieces); ++k) scatter(k);
    for (std::size_t k = 0; k < pieces; ++k) {
      while (scattered_ <= k) finish();
      combine(k);
      while (shared_ < k) finish();
      if (k + ahead < pieces) scatter(k + ahead);
    }
    while (shared_ < pieces) finish();
  }

 private:
  // Of a piece: what the others send of this rank's slice, what this rank sends of theirs, their results, its own.
  std::size_t slots() const { return 3 * static_cast<std::size_t>(size_ - 1) + 1; }
  char* slot(std::size_t k, std::size_t set, int step) const {
    const auto others = static_cast<std::size_t>(size_ - 1);
    return memory_ + (k % ahead * slots() + set * others + static_cast<std::size_t>(step - 1)) * slot_;
  }
  int to(int step) const { return (rank_ + step) % size_; }
  int from(int step) const { return (rank_ - step + size_) % size_; }
  Slice of(std::size_t k, int owner) const { return slice(held_[k % held_.size()], size_, owner, width_); }

  void scatter(std::size_t k) {
    held_[k % held_.size()] = data_.open(k);
    const Slice mine = of(k, rank_);
    for (int step = 1; step < size_; ++step) {
      const Slice theirs = of(k, to(step));
      const char* const out = theirs.n == 0 ? nullptr : data_.brought(k, theirs.first, theirs.n, slot(k, 1, step));
      transport_.begin(out, theirs.n * width_, to(step), slot(k, 0, step), mine.n * width_, from(step));
    }
    order_.push_back(true);
  }

  void combine(std::size_t k) {
    const Slice mine = of(k, rank_);
    for (int step = 1; step < size_; ++step) others_[static_cast<std::size_t>(from(step))] = slot(k, 0, step);
    const char* const out = mine.n == 0 ? nullptr : data_.combine(k, mine.first, mine.n, others_.data(), slot(k, 3, 1));
    for (int step = 1; step < size_; ++step) {
      const Slice theirs = of(k, from(step));
      char* const in = theirs.n == 0 ? nullptr : data_.place(k, theirs.first, theirs.n, slot(k, 2, step));
      transport_.begin(out, mine.n * width_, to(step), in, theirs.n * width_, from(step));
    }
    order_.push_back(false);
  }

  // Waits for what was begun first: a piece's scattering, or the sharing of its results.
  void finish() {
    for (int step = 1; step < size_; ++step) transport_.finish();
    const bool scattering = order_[finished_++];
    if (scattering) {
      ++scattered_;
      return;
    }
    const std::size_t k = shared_++;
    for (int step = 1; step < size_; ++step) {
      const Slice theirs = of(k, from(step));
      char* const there = slot(k, 2, step);
      if (theirs.n > 0 && data_.place(k, theirs.first, theirs.n, there) == there) data_.take(k, theirs.first, theirs.n, there);
    }
    data_.close(k);
  }

  Transport& transport_;
  PairwiseData& data_;
  int size_, rank_;
  std::size_t width_;
  std::size_t slot_;  // bytes
  char* memory_;
  std::array<std::size_t, PairwiseData::at_once> held_{};  // elements of the open pieces
  std::vector<const char*> others_;
  std::vector<bool> order_;  // what was begun: true for a scattering
  std::size_t finished_ = 0, scattered_ = 0, shared_ = 0;
};

void stand_by(PairwiseData& data) {
  const std::size_t pieces = data.pieces();
  for (std::size_t k = 0; k < std::min(ahead, pieces); ++k) data.open(k);
  for (std::size_t k = 0; k < pieces; ++k) {
    if (k > 0) data.close(k - 1);
    if (k + ahead < pieces) data.open(k + ahead);
  }
  if (pieces > 0) data.close(pieces - 1);
}

}  // namespace

void pairwise(Transport* transport, PairwiseData& data, Scratch& scratch) {
  if (transport == nullptr) stand_by(data);
  else if (data.pieces() > 0) Pairwise(*transport, data, scratch).run();
}

}  // namespace dl
