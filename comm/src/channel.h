// One thread's place among the ranks of its node, for one team: where they meet, and the memory through which data
// passes.
//
// Invariant: all ranks of the job make the same sequence of calls on a channel, which agree() checks before any data
// moves. A channel serves one thread at a time. The shared memory belongs to the team's Segment.
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
#include "same_call.h"
#include "scratch.h"
#include "segment.h"
#include "settings.h"
#include "transport.h"
#include "wait.h"
#include "wire_choice.h"

namespace dl {

// What one rank shows the others of its node. Two slots for what a call announces: a rank may be one call ahead.
struct alignas(64) Mailbox {
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

class Channel {
 public:
  // Bytes of shared memory that one channel takes.
  static std::size_t footprint(const Layout& layout, const Settings& settings);

  // The channel at `offset` of `segment`; `number` keeps its messages apart from those of other channels.
  Channel(const Layout& layout, const Transport& world, const Settings& settings, std::shared_ptr<Segment> segment,
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
  // the first array that differs, if they do not. The cargo of local rank 0, if there is any, is combined over the nodes
  // on the way; every node has the same, or none. Of two nodes of one rank each all may bring elements instead.
  Agreement agree(const Message& message, std::uint64_t place, const Cargo* cargo = nullptr, const Straight* straight = nullptr);

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

  WireChoice& wire_choice() { return wire_choice_; }

  // Memory of this channel for the wire, kept from call to call: at least `bytes` for accumulators (three sets, 0 to 2), and
  // for what arrives.
  char* accumulators(std::size_t set, std::size_t bytes) { return accumulators_[set].at_least(bytes); }
  Scratch& scratch() { return scratch_; }

  // While one lives, what peers() have begun moves on while this channel's thread waits for ranks of its node. Else two nodes could
  // each wait for a message that a waiting rank of the other has under way.
  class Moving {
   public:
    explicit Moving(Channel& channel) : channel_(channel) { channel_.moving_ = channel_.peers_ != nullptr; }
    ~Moving() { channel_.moving_ = false; }
    Moving(const Moving&) = delete;
    Moving& operator=(const Moving&) = delete;

   private:
    Channel& channel_;
  };

  // A thread that goes over the wire while this channel's own works on the node. It alone uses peers() and scratch() then.
  Queue& progress_thread() { return progress_thread_; }
  // Ends all that this channel is sending or receiving, now or later, with an error: its team has failed. From any thread.
  void abandon();

  void raise(const std::string& text);  // rings the alarm of the node
  void leave();                         // tells the node that this rank has finalized

 private:
  void watch(int local);
  Mailbox& mailbox(int local) const { return mailboxes_[local]; }

  const Layout& layout_;
  const Settings& settings_;
  int number_;
  std::shared_ptr<Segment> segment_;
  std::unique_ptr<Transport> everyone_, peers_, delegates_;
  Alarm* alarm_;
  Mailbox* mailboxes_;
  char* stages_;
  std::size_t stage_bytes_;
  Backoff backoff_;
  std::uint32_t now_ = 0;    // meetings this rank has come to
  std::uint64_t calls_ = 0;  // agreements so far
  std::uint64_t chunk_ = 0;
  bool moving_ = false;
  WireChoice wire_choice_;
  Scratch accumulators_[3], scratch_;
  std::chrono::steady_clock::time_point waiting_since_{};
  Queue progress_thread_;  // last: its thread ends before what it uses
};

}  // namespace dl
