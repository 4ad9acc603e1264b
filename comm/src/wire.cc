#include "wire.h"

#include <algorithm>
#include <cstring>

#include "pairwise.h"
#include "wire_rounds.h"

namespace dl {

void wire_allreduce(Transport& transport, WireAlgorithm algorithm, const Reducer& reducer, void* acc, std::size_t n,
                    Scratch& scratch) {
  if (transport.size() == 1 || n == 0) return;
  if (algorithm == WireAlgorithm::mpi && reducer.op == Op::sum && transport.sum(acc, n, reducer.acc_type)) return;
  if (algorithm == WireAlgorithm::doubling) allreduce_doubling(transport, reducer, acc, n, scratch);
  else if (algorithm == WireAlgorithm::ring) allreduce_ring(transport, reducer, acc, n, scratch);
  else if (algorithm == WireAlgorithm::pairwise) allreduce_pairwise(transport, reducer, acc, n, scratch);
  else allreduce_halving(transport, reducer, acc, n, scratch);
}

// The ranks beyond the last power of two fold their data into a partner first, and get the result back at the end.
void allreduce_doubling(Transport& transport, const Reducer& reducer, void* acc, std::size_t n,
                        Scratch& scratch) {
  const int size = transport.size(), rank = transport.rank();
  const std::size_t bytes = n * reducer.acc_width;
  auto* const data = static_cast<char*>(acc);
  const Reducer& accumulators = dl::reducer(reducer.acc_type, reducer.op, 0);
  int core = 1;
  while (core * 2 <= size) core *= 2;
  if (rank >= core) {
    transport.exchange(acc, bytes, rank - core, nullptr, 0, 0);
    transport.exchange(nullptr, 0, 0, acc, bytes, rank - core);
    return;
  }
  const bool folds = rank + core < size;
  if (folds) {
    char* const arrived = scratch.at_least(bytes);
    transport.exchange(nullptr, 0, 0, arrived, bytes, rank + core);
    reducer.combine(acc, arrived, n);
  }
  for (int apart = 1; apart < core; apart *= 2) {
    const int partner = rank ^ apart;
    const auto give = [&](std::size_t first, std::size_t, char*) { return data + first; };
    transport.swap(bytes, partner, scratch, give, [&](std::size_t first, std::size_t some, const char* arrived) {
      const bool lower = rank < partner;  // lower rank first, on both sides
      const void* const in[] = {lower ? data + first : arrived, lower ? arrived : data + first};
      void* const out[] = {data + first};
      accumulators.reduce(out, 1, 0, in, 2, some / reducer.acc_width, 1.0);
    });
  }
  if (folds) transport.exchange(acc, bytes, rank + core, nullptr, 0, 0);
}

namespace {

// Each round leaves this rank with a part of its stretch, summed over the ranks of the round.
void scatter_sums(Transport& transport, std::size_t width, const Add& add, char* data, const std::vector<Round>& rounds,
                  Scratch& scratch) {
  const int rank = transport.rank();
  for (const Round& at : rounds) {
    const std::size_t own = at.count(at.mine);
    char* const arrived = scratch.at_least(own * width);
    for (int step = 1; step < at.parts; ++step) {
      const int to = (at.mine + step) % at.parts, from = (at.mine - step + at.parts) % at.parts;
      transport.exchange(data + at.begin(to) * width, at.count(to) * width, at.member(to, rank), arrived,
                         own * width, at.member(from, rank));
      add(data + at.begin(at.mine) * width, arrived, own);
    }
  }
}

// The same backwards: each round gives this rank the other parts of its stretch.
void share_sums(Transport& transport, std::size_t width, char* data, const std::vector<Round>& rounds) {
  const int rank = transport.rank();
  for (auto round = rounds.rbegin(); round != rounds.rend(); ++round) {
    const Round& at = *round;
    for (int step = 1; step < at.parts; ++step) {
      const int to = (at.mine + step) % at.parts, from = (at.mine - step + at.parts) % at.parts;
      transport.exchange(data + at.begin(at.mine) * width, at.count(at.mine) * width, at.member(to, rank),
                         data + at.begin(from) * width, at.count(from) * width, at.member(from, rank));
    }
  }
}

// In each round all its ranks swap all n accumulators, and combine them in rank order: they hold the same bits.
void swap_sums(Transport& transport, const Reducer& reducer, char* data, std::size_t n, const std::vector<Round>& rounds,
               Scratch& scratch) {
  const int rank = transport.rank();
  const std::size_t bytes = n * reducer.acc_width;
  for (const Round& at : rounds) {
    char* const all = scratch.at_least(static_cast<std::size_t>(at.parts) * bytes);
    auto part = [&](int i) { return all + static_cast<std::size_t>(i) * bytes; };
    std::memcpy(part(at.mine), data, bytes);
    for (int step = 1; step < at.parts; ++step) {
      const int to = (at.mine + step) % at.parts, from = (at.mine - step + at.parts) % at.parts;
      transport.exchange(data, bytes, at.member(to, rank), part(from), bytes, at.member(from, rank));
    }
    for (int i = 1; i < at.parts; ++i) reducer.combine(part(0), part(i), n);
    std::memcpy(data, part(0), bytes);
  }
}

}  // namespace

// The nearest ranks first, since they swap the most. With 4 ranks (s: summed over all):
//
//   rank 0: A B C D     with 1: A+A B+B . .     with 2: sA .  .  .      the same
//   rank 1: A B C D     with 0: . . C+C D+D     with 3: .  .  sC .      swaps back,
//   rank 2: A B C D     with 3: A+A B+B . .     with 0: .  sB .  .      farthest first:
//   rank 3: A B C D     with 2: . . C+C D+D     with 1: .  .  .  sD     sA sB sC sD
//
// A number of ranks that is no power of two takes its other prime factors the same way: p ranks swap p-ths. From where a
// part fits into a packet, ranks swap the whole of it: one round then, instead of one there and one back.
void allreduce_halving(Transport& transport, const Reducer& reducer, void* acc, std::size_t n,
                       Scratch& scratch) {
  auto* data = static_cast<char*>(acc);
  std::vector<Round> far, rounds = rounds_of(transport.size(), transport.rank(), n);
  const auto fits = std::find_if(rounds.begin(), rounds.end(),
                                 [&](const Round& at) { return at.n * reducer.acc_width <= packet; });
  far.assign(fits, rounds.end());
  rounds.erase(fits, rounds.end());
  const Add add = [&](char* to, const char* more, std::size_t some) { reducer.combine(to, more, some); };
  scatter_sums(transport, reducer.acc_width, add, data, rounds, scratch);
  if (!far.empty())
    swap_sums(transport, reducer, data + far.front().first * reducer.acc_width, far.front().n, far, scratch);
  share_sums(transport, reducer.acc_width, data, rounds);
}

void allreduce_untouched(Transport& transport, std::size_t width, const Add& add, char* data, std::size_t n, Scratch& scratch) {
  if (n == 0) return;
  const std::vector<Round> rounds = rounds_of(transport.size(), transport.rank(), n);
  scatter_sums(transport, width, add, data, rounds, scratch);
  share_sums(transport, width, data, rounds);
}

// With 3 ranks and segments A B C (s: summed over all):
//
//   rank 0: A  B  C     step 1: r sends segment r        step 2: r sends segment r-1     sharing: the summed
//   rank 1: A  B  C     0 -A-> 1, 1 -B-> 2, 2 -C-> 0     0 -C-> 1, 1 -A-> 2, 2 -B-> 0    segments go round
//   rank 2: A  B  C     so 1 holds A+A, ...              now 1 has sC, 2 sA, 0 sB        in two more steps
void allreduce_ring(Transport& transport, const Reducer& reducer, void* acc, std::size_t n,
                    Scratch& scratch) {
  const int size = transport.size(), rank = transport.rank();
  const std::size_t segment = (n + static_cast<std::size_t>(size) - 1) / static_cast<std::size_t>(size);
  auto* data = static_cast<char*>(acc);
  auto begin = [&](int i) { return std::min(static_cast<std::size_t>((i % size + size) % size) * segment, n); };
  auto count = [&](int i) { return std::min(begin(i) + segment, n) - begin(i); };
  auto at = [&](int i) { return data + begin(i) * reducer.acc_width; };
  auto bytes = [&](int i) { return count(i) * reducer.acc_width; };
  const int next = (rank + 1) % size, before = (rank - 1 + size) % size;
  char* const arrived = scratch.at_least(segment * reducer.acc_width);
  for (int step = 0; step < size - 1; ++step) {
    const int out = rank - step, in = rank - step - 1;
    transport.exchange(at(out), bytes(out), next, arrived, bytes(in), before);
    reducer.combine(at(in), arrived, count(in));
  }
  for (int step = 0; step < size - 1; ++step) {
    const int out = rank + 1 - step, in = rank - step;
    transport.exchange(at(out), bytes(out), next, at(in), bytes(in), before);
  }
}

namespace {

// Accumulators that lie together.
class Together : public PairwiseData {
 public:
  Together(const Transport& transport, const Reducer& reducer, char* acc, std::size_t n)
      : whole_(dl::reducer(reducer.acc_type, reducer.op, 0)),
        acc_(acc),
        n_(n),
        rank_(static_cast<std::size_t>(transport.rank())),
        in_(static_cast<std::size_t>(transport.size())),
        each_(std::min(n, Transport::piece / whole_.width * in_.size())) {}

  std::size_t pieces() const override { return (n_ + each_ - 1) / each_; }
  std::size_t largest() const override { return each_; }
  std::size_t width() const override { return whole_.width; }
  std::size_t open(std::size_t k) override { return std::min(each_, n_ - k * each_); }
  const char* brought(std::size_t k, std::size_t first, std::size_t, char*) override { return at(k, first); }
  char* place(std::size_t k, std::size_t first, std::size_t, char*) override { return at(k, first); }
  const char* combine(std::size_t k, std::size_t first, std::size_t n, const char* const* others, char*) override {
    std::copy(others, others + in_.size(), in_.begin());
    in_[rank_] = at(k, first);
    void* const out[] = {at(k, first)};
    whole_.reduce(out, 1, 0, in_.data(), static_cast<int>(in_.size()), n, 1.0);
    return at(k, first);
  }

 private:
  char* at(std::size_t k, std::size_t first) const { return acc_ + (k * each_ + first) * whole_.width; }

  const Reducer& whole_;
  char* acc_;
  std::size_t n_, rank_;
  std::vector<const void*> in_;
  std::size_t each_;
};

}  // namespace

void allreduce_pairwise(Transport& transport, const Reducer& reducer, void* acc, std::size_t n, Scratch& scratch) {
  Together data(transport, reducer, static_cast<char*>(acc), n);
  pairwise(&transport, data, scratch);
}

}  // namespace dl
