#include "same_call.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "channel.h"
#include "error.h"

namespace dl {
namespace {

constexpr std::size_t head = 64;  // bytes before the cargo, which then begins at a cache line's distance
static_assert(sizeof(Claim) <= head);

void merge(Claim& mine, const Claim& theirs) {
  if (theirs.fingerprint != mine.fingerprint || theirs.bytes != mine.bytes) mine.verdict &= ~Claim::agreed;
  mine.verdict &= theirs.verdict | Claim::mixed;
  if (theirs.place != mine.place || (theirs.verdict & Claim::mixed))
    mine.verdict = (mine.verdict & ~Claim::direct) | Claim::mixed;
}

// One node's part in the doubling: what it sends, and what arrives.
class Talk {
 public:
  Talk(Transport& delegates, Claim& claim, const Cargo* cargo, Scratch& scratch)
      : delegates_(delegates), claim_(claim), cargo_(cargo), mine_(scratch.at_least(2 * room)), theirs_(mine_ + room) {
    if (cargo != nullptr) cargo->load(mine_ + head);
  }

  // Nodes that do not agree send their claims alone.
  bool carries() const { return cargo_ != nullptr && (claim_.verdict & Claim::agreed); }
  const char* sums() const { return mine_ + head; }

  void send(int to) {
    std::memcpy(mine_, &claim_, sizeof claim_);
    delegates_.exchange(mine_, filled(), to, nullptr, 0, 0);
  }
  void swap(int with) {
    std::memcpy(mine_, &claim_, sizeof claim_);
    delegates_.exchange_up_to(mine_, filled(), with, theirs_, room, with);
    if (arrived().behind > 0) delegates_.exchange_up_to(nullptr, 0, 0, theirs_ + head, most_behind, with);  // we do not agree
  }
  void receive(int from) { delegates_.exchange_up_to(nullptr, 0, 0, theirs_, room, from); }

  // What has arrived is taken in, the lower node's numbers first.
  void add(bool theirs_first) {
    merge(claim_, arrived());
    if (!carries()) return;
    if (theirs_first) std::swap(mine_, theirs_);
    cargo_->reducer.combine(mine_ + head, theirs_ + head, cargo_->n);
  }
  void take() {
    claim_.verdict = arrived().verdict;
    std::swap(mine_, theirs_);
  }

 private:
  static constexpr std::size_t room = head + std::max(most_cargo, most_behind);

  std::size_t filled() const { return head + (carries() ? cargo_->n * cargo_->reducer.acc_width : 0); }
  Claim arrived() const {
    Claim theirs;
    std::memcpy(&theirs, theirs_, sizeof theirs);
    return theirs;
  }

  Transport& delegates_;
  Claim& claim_;
  const Cargo* cargo_;
  char *mine_, *theirs_;
};

}  // namespace

// The nodes beyond the last power of two fold theirs into a partner's first, and get what came of it at the end.
void agree_among_nodes(Transport& delegates, Claim& claim, const Cargo* cargo, Scratch& scratch) {
  const int size = delegates.size(), rank = delegates.rank();
  if (cargo != nullptr) claim.bytes = cargo->n * cargo->reducer.acc_width;
  Talk talk(delegates, claim, cargo, scratch);
  int core = 1;
  while (core * 2 <= size) core *= 2;
  if (rank >= core) {
    talk.send(rank - core);
    talk.receive(rank - core);
    talk.take();
  } else {
    const bool folds = rank + core < size;
    if (folds) {
      talk.receive(rank + core);
      talk.add(false);
    }
    for (int apart = 1; apart < core; apart *= 2) {
      talk.swap(rank ^ apart);
      talk.add((rank ^ apart) < rank);
    }
    if (folds) talk.send(rank + core);
  }
  if (talk.carries()) cargo->unload(talk.sums());
}

void agree_straight(Transport& delegates, Claim& claim, const Straight& straight, Scratch& scratch) {
  const int other = 1 - delegates.rank();
  constexpr std::size_t room = head + most_cargo;  // where they bring a cargo
  char* const arrived = scratch.at_least(room + most_behind);
  char mine[head] = {};
  claim.bytes = claim.behind = straight.bytes;
  std::memcpy(mine, &claim, sizeof claim);
  const Flight flight(delegates);
  delegates.begin(mine, head, other, arrived, room, other);
  delegates.begin(straight.brought, straight.bytes, other, nullptr, 0, 0);
  delegates.begin(nullptr, 0, 0, arrived + room, most_behind, other);
  delegates.finish();
  Claim theirs;
  std::memcpy(&theirs, arrived, sizeof theirs);
  merge(claim, theirs);
  delegates.finish();  // they take it even if we do not agree
  if (theirs.behind > 0) delegates.finish();
  if (claim.verdict & Claim::agreed) straight.take(arrived + room);
}

Channel::Agreement Channel::agree(const Message& message, std::uint64_t place, const Cargo* cargo, const Straight* straight) {
  const std::size_t slot = calls_++ & 1;
  const std::uint64_t mine = message.fingerprint();
  Mailbox& own = mailbox(layout_.local_rank);
  own.fingerprint[slot].store(mine, std::memory_order_relaxed);
  own.place[slot].store(place, std::memory_order_relaxed);
  meet();
  std::uint64_t verdict = Claim::agreed | (place != 0 ? Claim::direct : 0);
  for (int local = 0; local < layout_.local_size(); ++local) {
    if (mailbox(local).fingerprint[slot].load(std::memory_order_relaxed) != mine) verdict &= ~Claim::agreed;
    if (mailbox(local).place[slot].load(std::memory_order_relaxed) != place)
      verdict = (verdict & ~Claim::direct) | Claim::mixed;
  }
  if (layout_.nodes > 1) {
    if (layout_.local_rank == 0) {
      Claim claim{mine, place, verdict};
      if (straight != nullptr) agree_straight(*delegates_, claim, *straight, scratch_);
      else agree_among_nodes(*delegates_, claim, cargo, scratch_);
      own.verdict[slot].store(claim.verdict, std::memory_order_relaxed);
    }
    meet();
    verdict = mailbox(0).verdict[slot].load(std::memory_order_relaxed);
  }
  if (!(verdict & Claim::agreed)) {
    const std::string difference = first_difference(allgather(*everyone_, joined(message.description())));
    chunk_ = 0;  // who meant to reduce has staged a chunk, others have not; nobody reads any now
    throw Disagreement("the ranks do not agree: " + difference,
                    "every rank has to pass the same arrays, in the same order, with the same shapes and types");
  }
  return {(verdict & Claim::direct) != 0, (verdict & Claim::mixed) != 0};
}

}  // namespace dl
