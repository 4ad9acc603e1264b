#include "packed.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "wire_rounds.h"

namespace dl {
namespace {

constexpr std::size_t block = 256;             // elements that share a power of two
constexpr std::size_t few_packets = 8 * 1024;  // bytes; below, a message costs what its latency costs

float power_of_two(int exponent) {
  const auto bits = static_cast<std::uint32_t>(exponent + 127) << 23;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The exponent that brings the largest finite number into [2^14, 2^15); no more than a float holds, and its inverse.
int exponent_for(const float* in, std::size_t n) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, &in[i], sizeof bits);
    bits &= 0x7fffffffu;
    largest = std::max(largest, bits < 0x7f800000u ? bits : 0u);
  }
  if (largest == 0) return 0;
  return std::min(14 + 127 - std::max(1, static_cast<int>(largest >> 23)), 126);
}

// float32 to blocks of halves, and back.
class Packer {
 public:
  explicit Packer(Dtype half) : halves_(reducer(half, Op::sum, 0)), scales_(half == Dtype::float16) {}

  std::size_t block_bytes() const { return block * halves_.width + (scales_ ? sizeof(float) : 0); }

  void pack(char* to, const float* from, std::size_t n) const {
    const float* source = from;
    float scaled[block];
    if (scales_) {
      const int exponent = exponent_for(from, n);
      const float by = power_of_two(exponent), back = power_of_two(-exponent);
      for (std::size_t i = 0; i < n; ++i) scaled[i] = from[i] * by;
      std::memcpy(to + block * halves_.width, &back, sizeof back);
      source = scaled;
    }
    void* const out[] = {to};
    halves_.finish(out, 1, 0, source, n, 1.0);
  }

  void unpack(float* to, const char* from, std::size_t n) const {
    const void* const in[] = {from};
    halves_.partial(to, in, 1, n);
    if (!scales_) return;
    float back;
    std::memcpy(&back, from + block * halves_.width, sizeof back);
    for (std::size_t i = 0; i < n; ++i) to[i] *= back;
  }

 private:
  const Reducer& halves_;
  bool scales_;
};

// The accumulators, and as much memory for their packed form: block i of one belongs to block i of the other.
struct Packed {
  const Packer& packer;
  float* acc;
  std::size_t n;
  char* packed;

  std::size_t elements(std::size_t at) const { return std::min(block, n - at * block); }
  char* place(std::size_t at) const { return packed + at * packer.block_bytes(); }

  void pack(std::size_t first, std::size_t blocks) const {
    for (std::size_t at = first; at < first + blocks; ++at) packer.pack(place(at), acc + at * block, elements(at));
  }
  void unpack(std::size_t first, std::size_t blocks) const {
    for (std::size_t at = first; at < first + blocks; ++at) packer.unpack(acc + at * block, place(at), elements(at));
  }
  void add(const Reducer& reducer, const char* arrived, std::size_t first, std::size_t blocks) const {
    for (std::size_t at = first; at < first + blocks; ++at, arrived += packer.block_bytes()) {
      float more[block];
      packer.unpack(more, arrived, elements(at));
      reducer.combine(acc + at * block, more, elements(at));
    }
  }
};

}  // namespace

bool worth_packing(const Reducer& reducer, std::size_t bytes) {
  return bytes > few_packets && reducer.op == Op::sum && reducer.acc_type == Dtype::float32;
}

void packed_allreduce(Transport& transport, Dtype half, const Reducer& reducer, float* acc, std::size_t n,
                      Scratch& scratch) {
  if (transport.size() == 1 || n == 0) return;
  const Packer packer(half);
  const int rank = transport.rank();
  const std::size_t blocks = (n + block - 1) / block, bytes = packer.block_bytes();
  const std::vector<Round> rounds = rounds_of(transport.size(), rank, blocks);
  char* const memory = scratch.at_least((blocks + rounds.front().count(rounds.front().mine)) * bytes);
  const Packed data{packer, acc, n, memory};
  char* const arrived = memory + blocks * bytes;
  for (const Round& at : rounds) {
    const std::size_t own = at.begin(at.mine), owned = at.count(at.mine);
    for (int step = 1; step < at.parts; ++step) {
      const int to = (at.mine + step) % at.parts, from = (at.mine - step + at.parts) % at.parts;
      data.pack(at.begin(to), at.count(to));
      transport.exchange(data.place(at.begin(to)), at.count(to) * bytes, at.member(to, rank), arrived, owned * bytes,
                         at.member(from, rank));
      data.add(reducer, arrived, own, owned);
    }
  }
  const Round& last = rounds.back();
  data.pack(last.begin(last.mine), last.count(last.mine));
  for (auto round = rounds.rbegin(); round != rounds.rend(); ++round) {
    const Round& at = *round;
    const std::size_t own = at.begin(at.mine), owned = at.count(at.mine);
    for (int step = 1; step < at.parts; ++step) {
      const int to = (at.mine + step) % at.parts, from = (at.mine - step + at.parts) % at.parts;
      transport.exchange(data.place(own), owned * bytes, at.member(to, rank), data.place(at.begin(from)),
                         at.count(from) * bytes, at.member(from, rank));
    }
  }
  data.unpack(0, blocks);
}

}  // namespace dl
