// One thread's place among the ranks of its node, for one team: where they meet, and the memory through which data
// passes.
//
// Invariant: all ranks of the job make the same sequence of calls on a lane, which agree() checks before any data
// moves. A lane serves one thread at a time. The shared memory belongs to the team's Segment.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "layout.h"
#include "message.h"
#include "queue.h"
#include "scratch.h"
#include "segment.h"
#include "settings.h"
#include "transport.h"
#include "wait.h"

namespace dl {

// What one rank shows the others of its node. Two slots for what a call announces: a rank may be one call ahead.
struct alignas(64) Desk {
  Counter tick;                               // how many meetings it has come to
  std::atomic<std::uint64_t> fingerprint[2];  // of the call it is in
  std::atomic<std::uint64_t> place[2];        // where its arrays lie in the arena; 0: elsewhere
  std::atomic<std::uint64_t> verdict[2];      // local rank 0: what all nodes agreed on
  std::atomic<std::int32_t> pid;
  std::atomic<std::uint32_t> left;            // it has finalized
};

// The first failure on the node: whoever waits sees it and fails with the same words. Text is valid once raised is 2.
struct alignas(64) Alarm {
  std::atomic<std::uint32_t> raised;  // 0 none, 1 being written, 2 written
  char text[1020];
};

class Lane {
 public:
  // Bytes of shared memory that one lane takes.
  static std::size_t footprint(const Layout& layout, const Settings& settings);

  // The lane at `offset` of `segment`; `number` keeps its messages apart from those of other lanes.
  Lane(const Layout& layout, const Transport& world, const Settings& settings, std::shared_ptr<Segment> segment,
       std::size_t offset, int number);

  // Comes to the next meeting, without waiting, and returns its number / waits until every rank of the node has come to
  // meeting `number`. What a rank wrote before it arrived is visible to those who have waited.
  std::uint32_t arrive();
  void wait(std::uint32_t number);
  void meet() { wait(arrive()); }

  struct Agreement {
    bool direct;  // all ranks' arrays lie at the same places of the arena
    bool mixed;   // some do, some do not
  };
  // A meeting at which all ranks of the job check that they make the same call. Throws CommError on every rank, naming
  // the first array that differs, if they do not.
  Agreement agree(const Message& message, std::uint64_t place);

  // Where rank `local` of the node stages chunk number `chunk`. Three buffers a rank: while one is read by the others,
  // the next is filled, and the one after may still be read by a rank that is late.
  char* stage(int local, std::uint64_t chunk) const;
  std::size_t stage_bytes() const { return stage_bytes_; }
  std::uint64_t next_chunk() { return chunk_++; }

  const Layout& layout() const { return layout_; }
  const Settings& settings() const { return settings_; }
  Transport& everyone() { return *everyone_; }
  Transport& peers() { return *peers_; }          // owners only
  std::unique_ptr<Transport> among(const std::vector<int>& ranks) const { return everyone_->subset(ranks, number_); }

  // Memory of this lane for the wire, kept from call to call: at least `bytes` for accumulators (two sets, 0 and 1), and
  // for what arrives.
  char* accumulators(std::size_t set, std::size_t bytes) { return accumulators_[set].at_least(bytes); }
  Scratch& scratch() { return scratch_; }

  // A thread that goes over the wire while this lane's own works on the node. It alone uses peers() and scratch() then.
  Queue& courier() { return courier_; }
  // Ends all that this lane is sending or receiving, now or later, with an error: its team has failed. From any thread.
  void abandon();

  void raise(const std::string& text);  // rings the alarm of the node
  void leave();                         // tells the node that this rank has finalized

 private:
  void watch(int local);
  Desk& desk(int local) const { return desks_[local]; }

  const Layout& layout_;
  const Settings& settings_;
  int number_;
  std::shared_ptr<Segment> segment_;
  std::unique_ptr<Transport> everyone_, peers_, delegates_;
  Alarm* alarm_;
  Desk* desks_;
  char* stages_;
  std::size_t stage_bytes_;
  Patience patience_;
  std::uint32_t now_ = 0;    // meetings this rank has come to
  std::uint64_t calls_ = 0;  // agreements so far
  std::uint64_t chunk_ = 0;
  Scratch accumulators_[2], scratch_;
  std::chrono::steady_clock::time_point waiting_since_{};
  Queue courier_;  // last: its thread ends before what it uses
};

}  // namespace dl
