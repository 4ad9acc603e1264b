#include "little.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "same_call.h"

namespace dl {
namespace {

constexpr std::size_t cargo_of_many = 16 * 1024;  // more than two nodes send all their cargo in each round

}  // namespace

std::size_t carried(const Channel& channel, const Part& part) {
  const Settings& settings = channel.settings();
  if (!settings.wire.empty() || settings.wire_dtype != "same") return 0;  // they say how
  const Layout& layout = channel.layout();
  const std::size_t most = layout.nodes == 2 ? most_cargo : cargo_of_many, fit = most / part.reducer.acc_width;
  if (layout.nodes == 2 && layout.alone()) return std::min(part.n, fit);
  return part.n <= std::min(fit, channel.stage_bytes() / part.reducer.width) ? part.n : 0;
}

void agree_carrying(Channel& channel, const Message& message, const Part& part, std::size_t n) {
  const Layout& layout = channel.layout();
  const std::size_t width = part.reducer.width;
  const bool leads = layout.local_rank == 0, shares = layout.local_size() > 1;
  const std::uint64_t brought = channel.next_chunk(), result = channel.next_chunk();
  if (!leads) part.flat.gather(channel.stage(layout.local_rank, brought), part.first, n);
  const auto load = [&](char* acc) {
    std::vector<const void*> in(static_cast<std::size_t>(layout.local_size()));
    std::size_t offset = 0;
    part.flat.sources(part.first, n, [&](const char* own, std::size_t some) {
      in.front() = own;
      for (std::size_t j = 1; j < in.size(); ++j) in[j] = channel.stage(static_cast<int>(j), brought) + offset;
      part.reducer.partial(acc, in.data(), layout.local_size(), some);
      acc += some * part.reducer.acc_width;
      offset += some * width;
    });
  };
  const auto unload = [&](const char* acc) {
    std::size_t offset = 0;
    part.flat.stretches(part.first, n, [&](char* own, std::size_t some) {
      void* const out[] = {own, channel.stage(0, result) + offset};
      part.reducer.finish(out, shares ? 2 : 1, 0, acc, some, part.divisor);
      acc += some * part.reducer.acc_width;
      offset += some * width;
    });
  };
  const Cargo cargo{part.reducer, n, load, unload};
  channel.agree(message, 0, &cargo);
  if (!leads) part.flat.scatter(channel.stage(0, result), part.first, n);
}

}  // namespace dl
