#include "flat.h"

#include <algorithm>
#include <cstring>

#include "reducer.h"

namespace dl {
namespace {

constexpr std::size_t much = 1024;  // bytes

}  // namespace

Flat::Flat(std::vector<Buffer> buffers) : starts_{0}, dtype_(buffers.front().dtype), width_(width(dtype_)) {
  for (const Buffer& buffer : buffers) {
    if (buffer.count == 0) continue;
    in_place_ = in_place_ && buffer.source() == buffer.data;
    if (!buffers_.empty() && buffers_.back().data + buffers_.back().count * width_ == buffer.data &&
        buffers_.back().source() + buffers_.back().count * width_ == buffer.source()) {
      buffers_.back().count += buffer.count;
      starts_.back() += buffer.count;
    } else {
      buffers_.push_back(buffer);
      starts_.push_back(starts_.back() + buffer.count);
    }
  }
}

std::size_t Flat::holding(std::size_t element) const {
  return static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), element) - starts_.begin()) - 1;
}

void Flat::gather(char* to, std::size_t first, std::size_t n) const {
  sources(first, n, [&](const char* from, std::size_t some) {
    if (some * width_ >= much) copy_past_caches(to, from, some * width_);
    else std::memcpy(to, from, some * width_);
    to += some * width_;
  });
}

void Flat::scatter(const char* from, std::size_t first, std::size_t n) const {
  stretches(first, n, [&](char* to, std::size_t some) {
    std::memcpy(to, from, some * width_);
    from += some * width_;
  });
}

std::vector<Flat> by_type(const std::vector<Buffer>& buffers) {
  std::vector<Dtype> order;
  for (const Buffer& buffer : buffers)
    if (std::find(order.begin(), order.end(), buffer.dtype) == order.end()) order.push_back(buffer.dtype);
  std::vector<Flat> flats;
  for (const Dtype dtype : order) {
    std::vector<Buffer> same;
    for (const Buffer& buffer : buffers)
      if (buffer.dtype == dtype) same.push_back(buffer);
    flats.emplace_back(std::move(same));
  }
  return flats;
}

}  // namespace dl
