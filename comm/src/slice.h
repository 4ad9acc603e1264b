// How a stretch of data is cut among the ranks that each combine a part of it.
#pragma once

#include <algorithm>
#include <cstddef>

namespace dl {

struct Slice {
  std::size_t first, n;
};

// Slice `i` of n elements, cut for `owners`, at whole cache lines.
inline Slice slice(std::size_t n, int owners, int i, std::size_t width) {
  const auto parts = static_cast<std::size_t>(owners), at = static_cast<std::size_t>(i);
  const std::size_t grain = 64 / width;
  const std::size_t each = ((n + parts - 1) / parts + grain - 1) / grain * grain;
  const std::size_t first = std::min(at * each, n);
  return {first, std::min(each, n - first)};
}

}  // namespace dl
