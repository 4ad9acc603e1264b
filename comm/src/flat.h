// The arrays of one element type in a message, seen as one long array.
#pragma once

#include <cstddef>
#include <vector>

#include "message.h"

namespace dl {

class Flat {
 public:
  // At least one buffer; all of one type.
  explicit Flat(std::vector<Buffer> buffers);

  std::size_t size() const { return starts_.back(); }  // elements
  Dtype dtype() const { return dtype_; }

  // Copies elements [first, first + n) from where they are read to contiguous memory, past the caches if there is much, as
  // others will read it / into the arrays.
  void gather(char* to, std::size_t first, std::size_t n) const;
  void scatter(const char* from, std::size_t first, std::size_t n) const;

  // Calls visit(address, elements) for each stretch of [first, first + n) that is contiguous in memory. Of arrays that are
  // read elsewhere (message.h) sources() visits where they are read, and places() both: visit(source, address, elements).
  template <class Visit>
  void stretches(std::size_t first, std::size_t n, Visit visit) const;
  template <class Visit>
  void sources(std::size_t first, std::size_t n, Visit visit) const;
  template <class Visit>
  void places(std::size_t first, std::size_t n, Visit visit) const;

  bool in_place() const { return in_place_; }  // every array is read where it is written

 private:
  std::size_t holding(std::size_t element) const;

  std::vector<Buffer> buffers_;      // without empty ones; neighbours in memory are joined
  std::vector<std::size_t> starts_;  // first element of each buffer, and the end
  Dtype dtype_;
  std::size_t width_;
  bool in_place_ = true;
};

// One Flat for each type, in the order in which the types first appear.
std::vector<Flat> by_type(const std::vector<Buffer>& buffers);

template <class Visit>
void Flat::places(std::size_t first, std::size_t n, Visit visit) const {
  for (std::size_t at = n > 0 ? holding(first) : 0; n > 0; ++at) {
    const std::size_t inside = first - starts_[at];
    const std::size_t left = starts_[at + 1] - first;
    const std::size_t some = left < n ? left : n;
    visit(buffers_[at].source() + inside * width_, buffers_[at].data + inside * width_, some);
    first += some;
    n -= some;
  }
}

template <class Visit>
void Flat::stretches(std::size_t first, std::size_t n, Visit visit) const {
  places(first, n, [&](const char*, char* at, std::size_t some) { visit(at, some); });
}

template <class Visit>
void Flat::sources(std::size_t first, std::size_t n, Visit visit) const {
  places(first, n, [&](const char* from, char*, std::size_t some) { visit(from, some); });
}

}  // namespace dl
