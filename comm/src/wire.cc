#include "wire.h"

#include <algorithm>
#include <cstring>

namespace dl {
namespace {

constexpr std::size_t ring_from = 64 * 1024;  // bytes from which bandwidth counts more than latency

}  // namespace

void wire_allreduce(Transport& transport, const Reducer& reducer, void* acc, std::size_t n,
                    std::vector<char>& scratch) {
  if (transport.size() == 1 || n == 0) return;
  if (n * reducer.acc_width < ring_from || n < static_cast<std::size_t>(transport.size()))
    allreduce_doubling(transport, reducer, acc, n, scratch);
  else
    allreduce_ring(transport, reducer, acc, n, scratch);
}

// The ranks beyond the last power of two fold their data into a partner first, and get the result back at the end.
void allreduce_doubling(Transport& transport, const Reducer& reducer, void* acc, std::size_t n,
                        std::vector<char>& scratch) {
  const int size = transport.size(), rank = transport.rank();
  const std::size_t bytes = n * reducer.acc_width;
  scratch.resize(std::max(scratch.size(), bytes));
  int core = 1;
  while (core * 2 <= size) core *= 2;
  if (rank >= core) {
    transport.exchange(acc, bytes, rank - core, nullptr, 0, 0);
    transport.exchange(nullptr, 0, 0, acc, bytes, rank - core);
    return;
  }
  const bool folds = rank + core < size;
  if (folds) {
    transport.exchange(nullptr, 0, 0, scratch.data(), bytes, rank + core);
    reducer.combine(acc, scratch.data(), n);
  }
  for (int apart = 1; apart < core; apart *= 2) {
    const int partner = rank ^ apart;
    transport.exchange(acc, bytes, partner, scratch.data(), bytes, partner);
    if (partner > rank) {
      reducer.combine(acc, scratch.data(), n);
    } else {  // lower rank first, on both sides
      reducer.combine(scratch.data(), acc, n);
      std::memcpy(acc, scratch.data(), bytes);
    }
  }
  if (folds) transport.exchange(acc, bytes, rank + core, nullptr, 0, 0);
}

// With 3 ranks and segments A B C (s: summed over all):
//
//   rank 0: A  B  C     step 1: r sends segment r        step 2: r sends segment r-1     sharing: the summed
//   rank 1: A  B  C     0 -A-> 1, 1 -B-> 2, 2 -C-> 0     0 -C-> 1, 1 -A-> 2, 2 -B-> 0    segments go round
//   rank 2: A  B  C     so 1 holds A+A, ...              now 1 has sC, 2 sA, 0 sB        in two more steps
void allreduce_ring(Transport& transport, const Reducer& reducer, void* acc, std::size_t n,
                    std::vector<char>& scratch) {
  const int size = transport.size(), rank = transport.rank();
  const std::size_t segment = (n + static_cast<std::size_t>(size) - 1) / static_cast<std::size_t>(size);
  auto* data = static_cast<char*>(acc);
  auto begin = [&](int i) { return std::min(static_cast<std::size_t>((i % size + size) % size) * segment, n); };
  auto count = [&](int i) { return std::min(begin(i) + segment, n) - begin(i); };
  auto at = [&](int i) { return data + begin(i) * reducer.acc_width; };
  auto bytes = [&](int i) { return count(i) * reducer.acc_width; };
  const int next = (rank + 1) % size, before = (rank - 1 + size) % size;
  scratch.resize(std::max(scratch.size(), segment * reducer.acc_width));
  for (int step = 0; step < size - 1; ++step) {
    const int out = rank - step, in = rank - step - 1;
    transport.exchange(at(out), bytes(out), next, scratch.data(), bytes(in), before);
    reducer.combine(at(in), scratch.data(), count(in));
  }
  for (int step = 0; step < size - 1; ++step) {
    const int out = rank + 1 - step, in = rank - step;
    transport.exchange(at(out), bytes(out), next, at(in), bytes(in), before);
  }
}

}  // namespace dl
