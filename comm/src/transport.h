// How bytes move between the ranks of one group.
//
// Every call blocks until it is done, or throws CommError after the timeout, naming the rank that did not answer.
// Overlap comes from threads (team.h), never from futures, so an algorithm over a Transport reads from top to bottom.
// One Transport serves one thread at a time; a thread that wants its own asks for subset() with another lane.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "element.h"

namespace dl {

class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // The rank in the whole job of `rank` in this group: what messages to people name.
  virtual int world_rank(int rank) const = 0;

  // Sends `out` to rank `to` and receives `in` from rank `from`, both at once. No bytes: nothing moves that way.
  virtual void exchange(const void* out, std::size_t out_bytes, int to, void* in, std::size_t in_bytes, int from) = 0;

  // Sums n float32, float64 or int64 over the group, in place, by the communication library's own allreduce. Returns
  // false, on all ranks, if there is none; nothing has moved then.
  virtual bool sum(void* data, std::size_t n, Dtype dtype);

  // Why exchange() must not be given memory of a GPU; "": it may.
  virtual std::string against_gpu_memory() const { return "there is no MPI"; }

  // Makes the exchange that is under way, and all later ones, fail at once. From any thread.
  virtual void abandon() = 0;

  // The group of `ranks` (of this group, which holds the caller), apart from all traffic of other lanes. Not
  // collective: it costs no message. Each member names the same ranks in the same order.
  virtual std::unique_ptr<Transport> subset(const std::vector<int>& ranks, int lane) const = 0;

  // The same group on another lane.
  std::unique_ptr<Transport> on_lane(int lane) const;
};

// Returns once every rank has called. ceil(log2 size) messages each.
void barrier(Transport& transport);

// Every rank gives `bytes` bytes and gets those of all ranks, in rank order. ceil(log2 size) messages each.
void allgather(Transport& transport, const void* mine, std::size_t bytes, void* all);

// The same for texts of any length.
std::vector<std::string> allgather(Transport& transport, const std::string& mine);

// Rank `root`'s bytes reach every rank along a binomial tree.
void broadcast(Transport& transport, void* data, std::size_t bytes, int root);

// The same for a text of any length.
std::string broadcast(Transport& transport, std::string text, int root);

}  // namespace dl
