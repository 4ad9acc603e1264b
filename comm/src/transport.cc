#include "transport.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>

namespace dl {

// Two pieces are under way, so that one is on the wire while the other is combined.
void Transport::swap(std::size_t bytes, int with, Scratch& scratch, const Give& give, const Come& come) {
  char* const room = scratch.at_least(4 * piece);
  const auto in = [&](std::size_t first) { return room + first / piece % 2 * 2 * piece; };
  const auto begin_at = [&](std::size_t first) {
    if (first >= bytes) return;
    const std::size_t some = std::min(piece, bytes - first);
    begin(give(first, some, in(first) + piece), some, with, in(first), some, with);
  };
  const Flight flight(*this);
  begin_at(0);
  begin_at(piece);
  for (std::size_t first = 0; first < bytes; first += piece) {
    finish();
    come(first, std::min(piece, bytes - first), in(first));
    begin_at(first + 2 * piece);
  }
}

bool Transport::sum(void*, std::size_t, Dtype) { return false; }

std::unique_ptr<Transport> Transport::on_channel(int channel) const {
  std::vector<int> everyone(static_cast<std::size_t>(size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  return subset(everyone, channel);
}

void barrier(Transport& transport) {
  char mine = 0;
  std::vector<char> all(static_cast<std::size_t>(transport.size()));
  allgather(transport, &mine, 1, all.data());
}

// Bruck: after round k a rank holds the blocks of the 2^k ranks from itself upwards, itself first.
void allgather(Transport& transport, const void* mine, std::size_t bytes, void* all) {
  const int n = transport.size(), rank = transport.rank();
  const auto count = static_cast<std::size_t>(n);
  std::vector<char> held(count * bytes);
  if (bytes == 0) return;
  std::memcpy(held.data(), mine, bytes);
  for (int have = 1; have < n; have *= 2) {
    const auto blocks = static_cast<std::size_t>(std::min(have, n - have));
    const int to = (rank - have + n) % n, from = (rank + have) % n;
    transport.exchange(held.data(), blocks * bytes, to, held.data() + static_cast<std::size_t>(have) * bytes,
                       blocks * bytes, from);
  }
  for (int i = 0; i < n; ++i)
    std::memcpy(static_cast<char*>(all) + static_cast<std::size_t>((rank + i) % n) * bytes,
                held.data() + static_cast<std::size_t>(i) * bytes, bytes);
}

std::vector<std::string> allgather(Transport& transport, const std::string& mine) {
  const auto n = static_cast<std::size_t>(transport.size());
  std::uint64_t length = mine.size();
  std::vector<std::uint64_t> lengths(n);
  allgather(transport, &length, sizeof length, lengths.data());
  const auto widest = static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end()));
  std::string padded = mine;
  padded.resize(widest);
  std::vector<char> all(n * widest);
  allgather(transport, padded.data(), widest, all.data());
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < n; ++i)
    texts.emplace_back(all.data() + i * widest, static_cast<std::size_t>(lengths[i]));
  return texts;
}

void broadcast(Transport& transport, void* data, std::size_t bytes, int root) {
  const int n = transport.size();
  const int me = (transport.rank() - root + n) % n;  // as if the root were rank 0
  auto real = [&](int relative) { return (relative + root) % n; };
  int bit = 1;
  for (; bit < n; bit *= 2)
    if (me & bit) {
      transport.exchange(nullptr, 0, 0, data, bytes, real(me - bit));
      break;
    }
  for (bit /= 2; bit > 0; bit /= 2)
    if (me + bit < n) transport.exchange(data, bytes, real(me + bit), nullptr, 0, 0);
}

std::string broadcast(Transport& transport, std::string text, int root) {
  std::uint64_t length = text.size();
  broadcast(transport, &length, sizeof length, root);
  text.resize(static_cast<std::size_t>(length));
  broadcast(transport, text.data(), text.size(), root);
  return text;
}

}  // namespace dl
