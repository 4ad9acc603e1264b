// Where the ranks are: which share a machine, and who reduces which part.
#pragma once

#include <string>
#include <vector>

#include "settings.h"
#include "transport.h"

namespace dl {

// Nodes are numbered by their lowest rank; ranks of a node by rank. Each of the first `owners` ranks of every node owns
// one slice of the data and talks about it with the owners of the same slice on the other nodes: its peers. Where nodes
// hold different numbers of ranks, the smallest decides; DL_COMM_WIRE_RANKS may allow fewer.
struct Layout {
  int node = 0;
  int nodes = 1;
  int local_rank = 0;
  int owners = 1;
  std::vector<int> node_of;    // of every rank
  std::vector<int> locals;     // ranks on this node
  std::vector<int> delegates;  // local rank 0 of every node
  std::vector<int> peers;      // owners of this rank's slice, one a node; empty if this rank owns none

  bool apart = false;          // some nodes are ranks of one machine that share no memory

  int local_size() const { return static_cast<int>(locals.size()); }
  bool owns() const { return local_rank < owners; }
  bool alone() const { return nodes > 1 && delegates.size() == node_of.size(); }  // every node has one rank
};

// The name of this machine: DL_COMM_HOST, or host name and boot id.
std::string host_identity(const Settings& settings);

// Collective over `world`. Where there are several nodes, at most `wire_ranks` of each talk to others; 0: all.
Layout find_layout(Transport& world, const std::string& host, int wire_ranks);

}  // namespace dl
