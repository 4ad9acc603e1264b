#include "broadcast.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "flat.h"

namespace dl {

void broadcast(Channel& channel, const Message& message, int root) {
  std::vector<Buffer> raw;
  for (const Buffer& buffer : message.buffers) raw.push_back({buffer.data, buffer.count * width(buffer.dtype), Dtype::uint8});
  if (raw.empty()) return;
  const Flat flat(std::move(raw));
  const Layout& layout = channel.layout();
  const int me = channel.everyone().rank(), root_node = layout.node_of[static_cast<std::size_t>(root)];
  std::vector<int> delegates = layout.delegates;
  delegates[static_cast<std::size_t>(root_node)] = root;
  const int delegate = delegates[static_cast<std::size_t>(layout.node)];
  const int local = static_cast<int>(
      std::find(layout.locals.begin(), layout.locals.end(), delegate) - layout.locals.begin());
  std::unique_ptr<Transport> tree;
  if (me == delegate && layout.nodes > 1) tree = channel.among(delegates);
  for (std::size_t first = 0; first < flat.size(); first += channel.stage_bytes()) {
    const std::size_t n = std::min(channel.stage_bytes(), flat.size() - first);
    char* stage = channel.stage(local, channel.next_chunk());
    if (me == root) flat.gather(stage, first, n);
    if (tree) broadcast(*tree, stage, n, root_node);
    channel.meet();
    if (me != root) flat.scatter(stage, first, n);
  }
}

}  // namespace dl
