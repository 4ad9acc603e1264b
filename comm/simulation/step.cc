// One simulated step on every node: dl_comm's own source between the nodes, over MPI as SimGrid simulates it. No
// threads, one rank a node.
//
//   step doubling|halving|ring|default BYTES   an allreduce; prints the simulated seconds of the slowest rank
//   step agreed BYTES                          dl_comm's call: an agreement, then what the wire takes at once
//                                              (DL_COMM_PIPELINE_CHUNK_KB for each node) until all is done
//   step fused BYTES                           Horovod's allreduces, in buffers of 64 MB (before its version 0.21)
//   step negotiated BYTES REQUEST              what comes before them: every rank reports its tensors to rank 0, which takes REQUEST
//                                              seconds for each (requests.cc measures that), and gets the list back
//   step cached BYTES                          or since Horovod 0.16: all ranks intersect bits, one for each tensor
//   step check BYTES                           every algorithm with real numbers, against the known sum
//
// "default" is wire_allreduce with the built-in table.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "reducer.h"
#include "transport.h"
#include "wire.h"

namespace {

constexpr int tensors = 161;            // of ResNet-50
constexpr int request_bytes = 64;       // one tensor's name, shape and type, as reported to rank 0
constexpr int response_bytes = 48;      // one tensor's name and size in the answer
constexpr std::size_t fusion_buffer = 64u << 20;
constexpr std::size_t pipeline_chunk = 256u << 10;  // DL_COMM_PIPELINE_CHUNK_KB
constexpr double flops_per_second = 10e9;           // of a simulated node
constexpr std::size_t agreement = 24;   // bytes that a node brings to dl_comm's agreement (channel.cc)

class SimulatedTransport : public dl::Transport {
 public:
  SimulatedTransport() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int world_rank(int rank) const override { return rank; }
  void exchange(const void* out, std::size_t out_bytes, int to, void* in, std::size_t in_bytes, int from) override {
    MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    if (in_bytes > 0) MPI_Irecv(in, static_cast<int>(in_bytes), MPI_BYTE, from, 0, MPI_COMM_WORLD, &requests[0]);
    if (out_bytes > 0) MPI_Isend(out, static_cast<int>(out_bytes), MPI_BYTE, to, 0, MPI_COMM_WORLD, &requests[1]);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
  }
  void exchange_up_to(const void* out, std::size_t out_bytes, int to, void* in, std::size_t in_bytes, int from) override {
    exchange(out, out_bytes, to, in, in_bytes, from);
  }
  void abandon() override {}
  std::unique_ptr<dl::Transport> subset(const std::vector<int>&, int) const override { return nullptr; }

 private:
  int rank_ = 0, size_ = 1;
};

// One piece of memory for all ranks.
class SharedScratch : public dl::Scratch {
 public:
  char* at_least(std::size_t bytes) override {
    if (memory_ == nullptr) memory_ = static_cast<char*>(SMPI_SHARED_MALLOC(most));
    return bytes <= most ? memory_ : nullptr;
  }
  std::size_t most = 0;

 private:
  char* memory_ = nullptr;
};

void add(void* acc, const void* more, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) static_cast<float*>(acc)[i] += static_cast<const float*>(more)[i];
}
void no_time(void*, const void*, std::size_t) {}

// The reducer of float32 sums; where only time counts, adding takes none, as in the replayed MPI algorithms.
dl::Reducer floats(bool timed) {
  dl::Reducer reducer{};
  reducer.width = reducer.acc_width = sizeof(float);
  reducer.acc_type = dl::Dtype::float32;
  reducer.op = dl::Op::sum;
  reducer.combine = timed ? no_time : add;
  return reducer;
}

void reduce(dl::Transport& world, const std::string& how, const dl::Reducer& reducer, void* data, std::size_t n,
            dl::Scratch& scratch) {
  if (how == "doubling") dl::allreduce_doubling(world, reducer, data, n, scratch);
  else if (how == "halving") dl::allreduce_halving(world, reducer, data, n, scratch);
  else if (how == "ring") dl::allreduce_ring(world, reducer, data, n, scratch);
  else dl::wire_allreduce(world, dl::wire_algorithm({}, n * reducer.acc_width, world.size()), reducer, data, n, scratch);
}

void reduce_in_pieces(dl::Transport& world, const dl::Reducer& reducer, void* data, std::size_t bytes, std::size_t piece,
                      dl::Scratch& scratch) {
  for (std::size_t done = 0; done < bytes; done += piece)
    reduce(world, "default", reducer, static_cast<char*>(data) + done, std::min(piece, bytes - done) / sizeof(float), scratch);
}

void negotiate(int rank, int size, double request_seconds) {
  std::vector<char> request(tensors * request_bytes), response(tensors * response_bytes);
  std::vector<char> all(rank == 0 ? request.size() * static_cast<std::size_t>(size) : 0);
  const int bytes = static_cast<int>(request.size());
  MPI_Gather(request.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
  if (rank == 0) smpi_execute_flops(request_seconds * tensors * size * flops_per_second);
  MPI_Bcast(response.data(), static_cast<int>(response.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
}

// Which tensors of the cache all ranks have, and whether any has one beyond it.
void intersect_bits() {
  long long bits[tensors / 64 + 1] = {}, flags = 0;
  MPI_Allreduce(MPI_IN_PLACE, bits, tensors / 64 + 1, MPI_LONG_LONG, MPI_BAND, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &flags, 1, MPI_LONG_LONG, MPI_BOR, MPI_COMM_WORLD);
}

bool check(dl::Transport& world, std::size_t n) {
  bool right = true;
  for (const char* how : {"doubling", "halving", "ring", "default"}) {
    dl::Scratch scratch;
    std::vector<float> data(n);
    for (std::size_t i = 0; i < n; ++i) data[i] = static_cast<float>(world.rank()) + static_cast<float>(i % 7);
    reduce(world, how, floats(false), data.data(), n, scratch);
    const auto ranks = static_cast<float>(world.size());
    for (std::size_t i = 0; i < n; ++i)
      if (data[i] != ranks * (ranks - 1) / 2 + ranks * static_cast<float>(i % 7)) right = false;
  }
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  SimulatedTransport world;
  const std::string how = argc > 1 ? argv[1] : "default";
  const std::size_t bytes = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1024, n = bytes / sizeof(float);
  if (how == "check") {
    const bool right = check(world, n);
    if (!right) std::printf("rank %d is wrong\n", world.rank());
    else if (world.rank() == 0) std::printf("right\n");
    MPI_Finalize();
    return right ? 0 : 1;
  }
  // All ranks' arrays in one piece of memory: only their sizes count, and 1024 times 100 MB would not fit.
  void* data = SMPI_SHARED_MALLOC(bytes);
  SharedScratch scratch;
  scratch.most = std::max<std::size_t>(bytes, 65536);
  // No computation is simulated: all ranks begin at the same time.
  const double begun = MPI_Wtime();
  const auto nodes = static_cast<std::size_t>(world.size());
  if (how == "agreed") {
    std::vector<char> mine(agreement), all(agreement * nodes);
    dl::allgather(world, mine.data(), agreement, all.data());
    reduce_in_pieces(world, floats(true), data, bytes, pipeline_chunk * nodes, scratch);
  } else if (how == "fused") {
    reduce_in_pieces(world, floats(true), data, bytes, fusion_buffer, scratch);
  } else if (how == "negotiated") {
    negotiate(world.rank(), world.size(), argc > 3 ? std::atof(argv[3]) : 0);
  } else if (how == "cached") {
    intersect_bits();
  } else {
    reduce(world, how, floats(true), data, n, scratch);
  }
  double took = MPI_Wtime() - begun, slowest = 0;
  MPI_Reduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  if (world.rank() == 0) std::printf("seconds %.9f\n", slowest);
  MPI_Finalize();
  return 0;
}
