// The check that all ranks make the same call (Channel::agree): what the nodes agree on at each call, in one exchange a
// round, and little data that is summed on the way: a call of little data takes no message of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "reducer.h"
#include "scratch.h"
#include "transport.h"

namespace dl {

// What one node says about a call.
struct Claim {
  // Bits of the verdict.
  static constexpr std::uint64_t agreed = 1, direct = 2, mixed = 4;

  std::uint64_t fingerprint;  // of the message
  std::uint64_t place;        // where the arrays lie in the arena; 0: elsewhere
  std::uint64_t verdict;
  std::uint64_t bytes = 0;    // of the cargo
  std::uint64_t behind = 0;   // bytes of it that come behind the claim, in a message of their own
};

// At most so many bytes of accumulators travel with an agreement.
inline constexpr std::size_t most_cargo = 64 * 1024;

// From how many bytes on a cargo comes behind its claim, which saves copies and costs a message; at most so many then.
inline constexpr std::size_t worth_a_message = 32 * 1024;
inline constexpr std::size_t most_behind = 256 * 1024;

// Accumulators that are combined over the nodes while these agree.
struct Cargo {
  const Reducer& reducer;
  std::size_t n;                            // at most most_cargo bytes
  std::function<void(char*)> load;          // writes the node's n accumulators
  std::function<void(const char*)> unload;  // gets those of all nodes, if they agree
};

// Elements of one of two nodes, which go straight from its memory, and are combined by the other as they arrive.
struct Straight {
  const char* brought;
  std::size_t bytes;                      // at most most_behind
  std::function<void(const char*)> take;  // gets the other's, if they agree
};

// Every node's claim becomes that of all nodes: the same verdict, by recursive doubling, ceil(log2 size) rounds and two more
// where the number of nodes is no power of two. `cargo` may be null; nodes with other cargo do not agree.
void agree_among_nodes(Transport& delegates, Claim& claim, const Cargo* cargo, Scratch& scratch);

// The same between two nodes. One may bring elements while the other brings a cargo or nothing: then they do not agree.
void agree_straight(Transport& delegates, Claim& claim, const Straight& straight, Scratch& scratch);

}  // namespace dl
