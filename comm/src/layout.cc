#include "layout.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>

namespace dl {

std::string host_identity(const Settings& settings) {
  if (!settings.host.empty()) return settings.host;
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return std::string(host) + " " + boot;
}

Layout find_layout(Transport& world, const std::string& host, int wire_ranks) {
  const std::vector<std::string> hosts = allgather(world, host);
  Layout layout;
  std::map<std::string, int> number;
  std::vector<std::vector<int>> members;
  for (int rank = 0; rank < world.size(); ++rank) {
    const auto [entry, fresh] = number.try_emplace(hosts[static_cast<std::size_t>(rank)], static_cast<int>(members.size()));
    if (fresh) members.emplace_back();
    members[static_cast<std::size_t>(entry->second)].push_back(rank);
    layout.node_of.push_back(entry->second);
  }
  layout.nodes = static_cast<int>(members.size());
  layout.node = layout.node_of[static_cast<std::size_t>(world.rank())];
  layout.locals = members[static_cast<std::size_t>(layout.node)];
  layout.local_rank = static_cast<int>(
      std::find(layout.locals.begin(), layout.locals.end(), world.rank()) - layout.locals.begin());
  layout.owners = world.size();
  for (const auto& node : members) {
    layout.owners = std::min(layout.owners, static_cast<int>(node.size()));
    layout.delegates.push_back(node.front());
  }
  if (layout.nodes > 1 && wire_ranks > 0) layout.owners = std::min(layout.owners, wire_ranks);
  if (layout.owns())
    for (const auto& node : members) layout.peers.push_back(node[static_cast<std::size_t>(layout.local_rank)]);
  return layout;
}

}  // namespace dl
