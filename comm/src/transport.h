// How bytes move between the ranks of one group.
//
// Every call blocks until it is done, or throws CommError after the timeout, naming the rank that did not answer.
// Overlap comes from threads (team.h), and from exchanges that are begun ahead and finished in the same order.
// One Transport serves one thread at a time; a thread that wants its own asks for subset() with another channel.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "element.h"
#include "scratch.h"

namespace dl {

class Transport {
 public:
  // Bytes of a piece of swap(): long enough that the messages' own cost does not count, and it stays in a core's cache.
  static constexpr std::size_t piece = 512 * 1024;

  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // The rank in the whole job of `rank` in this group: what messages to people name.
  virtual int world_rank(int rank) const = 0;

  // Sends `out` to rank `to` and receives `in` from rank `from`, both at once. No bytes: nothing moves that way.
  virtual void exchange(const void* out, std::size_t out_bytes, int to, void* in, std::size_t in_bytes, int from) = 0;

  // The same, where at most in_bytes bytes arrive: what they hold says how many did.
  virtual void exchange_up_to(const void* out, std::size_t out_bytes, int to, void* in, std::size_t in_bytes, int from) = 0;

  // Begins an exchange that goes on while this rank works / waits for the oldest that was begun. Until then what goes out stays
  // as it is, and what comes in is nobody's. Ranks begin the same exchanges in the same order, and nothing else meanwhile.
  // At most in_bytes bytes may arrive: what they hold says how many did.
  virtual void begin(const void* out, std::size_t out_bytes, int to, void* in, std::size_t in_bytes, int from) {
    exchange_up_to(out, out_bytes, to, in, in_bytes, from);
  }
  virtual void finish() {}
  // Lets what was begun move on, without waiting for it. False: there is nothing.
  virtual bool nudge() { return false; }
  // Takes back what was begun and not finished: what comes late would be written into memory that is another's by then.
  virtual void withdraw() {}

  // Sends `bytes` bytes to rank `with`, which sends as many, in pieces that are whole cache lines but for the last. For each in
  // order, give(first, bytes, slot) says where bytes [first, first + bytes) lie, be it in `slot`, and come(first, bytes, in) gets
  // the other's, when this rank's may be written. Some pieces are given before those before them have come.
  using Give = std::function<const char*(std::size_t first, std::size_t bytes, char* slot)>;
  using Come = std::function<void(std::size_t first, std::size_t bytes, const char* in)>;
  void swap(std::size_t bytes, int with, Scratch& scratch, const Give& give, const Come& come);

  // Sums n float32, float64 or int64 over the group, in place, by the communication library's own allreduce. Returns
  // false, on all ranks, if there is none; nothing has moved then.
  virtual bool sum(void* data, std::size_t n, Dtype dtype);

  // Why exchange() must not be given memory of a GPU; "": it may.
  virtual std::string against_gpu_memory() const { return "there is no MPI"; }

  // Makes the exchange that is under way, and all later ones, fail at once. From any thread.
  virtual void abandon() = 0;

  // This rank waits alone on its node: it may keep the core for a while, since no rank that is awaited needs it.
  virtual void has_core() {}

  // The group of `ranks` (of this group, which holds the caller), apart from all traffic of other channels. Not
  // collective: it costs no message. Each member names the same ranks in the same order.
  virtual std::unique_ptr<Transport> subset(const std::vector<int>& ranks, int channel) const = 0;

  // The same group on another channel.
  std::unique_ptr<Transport> on_channel(int channel) const;
};

// While one lives, exchanges may be begun; those that an error kept from being finished are withdrawn.
class Flight {
 public:
  explicit Flight(Transport& transport) : transport_(transport) {}
  ~Flight() { transport_.withdraw(); }
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;

 private:
  Transport& transport_;
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
