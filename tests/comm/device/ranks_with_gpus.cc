// Arrays on a fake GPU among ranks that are threads, for the sanitizers: the framework's threads enqueue, the teams'
// threads combine, and the fake's streams copy, all at once.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "session.h"
#include "transport_local.h"

extern "C" {
int cuDevicePrimaryCtxRetain(void** context, int device);
int cuCtxPushCurrent_v2(void* context);
int cuStreamCreate(void** stream, unsigned flags);
int cuStreamSynchronize(void* stream);
int cuMemAlloc_v2(unsigned long long* address, std::size_t bytes);
int cuMemHostAlloc(void** address, std::size_t bytes, unsigned flags);
int cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, std::size_t bytes, void* stream);
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, std::size_t bytes, void* stream);
char* fake_on_host(unsigned long long address, std::size_t bytes, const char* who);
}

int wrong_with_gpus();

namespace {

constexpr std::size_t most = 12000;  // elements

std::atomic<int> wrong{0};

void check(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  ++wrong;
}

// Takes memory of the fake GPU, too, as an MPI may.
class Aware : public dl::Transport {
 public:
  explicit Aware(std::unique_ptr<dl::Transport> below) : below_(std::move(below)) {}
  int rank() const override { return below_->rank(); }
  int size() const override { return below_->size(); }
  int world_rank(int rank) const override { return below_->world_rank(rank); }
  void exchange(const void* out, std::size_t out_bytes, int to, void* in, std::size_t in_bytes, int from) override {
    below_->exchange(found(const_cast<void*>(out), out_bytes), out_bytes, to, found(in, in_bytes), in_bytes, from);
  }
  void exchange_up_to(const void* out, std::size_t out_bytes, int to, void* in, std::size_t in_bytes, int from) override {
    below_->exchange_up_to(out, out_bytes, to, in, in_bytes, from);
  }
  void begin(const void* out, std::size_t out_bytes, int to, void* in, std::size_t in_bytes, int from) override {
    below_->begin(found(const_cast<void*>(out), out_bytes), out_bytes, to, found(in, in_bytes), in_bytes, from);
  }
  void finish() override { below_->finish(); }
  bool nudge() override { return below_->nudge(); }
  void withdraw() override { below_->withdraw(); }
  std::string against_gpu_memory() const override { return ""; }
  void abandon() override { below_->abandon(); }
  std::unique_ptr<dl::Transport> subset(const std::vector<int>& ranks, int channel) const override {
    return std::make_unique<Aware>(below_->subset(ranks, channel));
  }

 private:
  static void* found(void* data, std::size_t bytes) {  // addresses of the host's lie below
    const auto at = reinterpret_cast<std::uintptr_t>(data);
    return bytes == 0 || at < std::uintptr_t{1} << 47 ? data : fake_on_host(at, bytes, "a message");
  }

  std::unique_ptr<dl::Transport> below_;
};

// One large array and some small ones, which a kernel gathers; a reduction under way while the next one starts.
void reduce(dl::Session& session) {
  void *context = nullptr, *stream = nullptr, *pinned = nullptr;
  unsigned long long device = 0;
  int refused = cuDevicePrimaryCtxRetain(&context, 0) | cuCtxPushCurrent_v2(context) | cuStreamCreate(&stream, 1);
  refused |= cuMemAlloc_v2(&device, most * sizeof(float)) | cuMemHostAlloc(&pinned, most * sizeof(float), 1);
  check(refused == 0, "the fake driver works");
  auto* const host = static_cast<float*>(pinned);
  const int n = session.size();
  for (int step = 0; step < 12; ++step) {
    const std::size_t length = 1 + static_cast<std::size_t>(step * 997) % most;
    for (std::size_t i = 0; i < length; ++i) host[i] = static_cast<float>(session.rank() + step);
    check(cuMemcpyHtoDAsync_v2(device, host, length * sizeof(float), stream) == 0, "copied to the device");
    std::vector<dl::Buffer> buffers;
    auto* const at = reinterpret_cast<char*>(static_cast<std::uintptr_t>(device));
    const std::size_t piece = step % 2 == 0 ? most : 37;
    for (std::size_t first = 0; first < length; first += piece + 1)  // a gap between neighbours
      buffers.push_back({at + first * sizeof(float), std::min(piece, length - first), dl::Dtype::float32});
    const auto where = reinterpret_cast<std::uintptr_t>(stream);
    const std::uint64_t ticket = session.allreduce_on_gpu({"on a GPU", buffers, {}}, dl::Op::sum, 0, where);
    session.follow_on_gpu(ticket, where);
    if (step % 3 == 0) session.follow_on_gpu(session.broadcast_on_gpu({"sent", buffers, {}}, step % n, 0, where), where);
    check(cuMemcpyDtoHAsync_v2(host, device, length * sizeof(float), stream) == 0, "copied to the host");
    cuStreamSynchronize(stream);
    session.await_on_gpu(ticket);
    for (std::size_t i = 0; i < length; ++i) {
      const bool gap = i % (piece + 1) == piece;
      check(host[i] == static_cast<float>(gap ? session.rank() + step : n * step + n * (n - 1) / 2), "sum on a GPU");
    }
  }
}

}  // namespace

int wrong_with_gpus() {
  setenv("FAKE_CUDA_DELAY_US", "100", 1);
  static std::vector<std::unique_ptr<dl::Session>> sessions(10);  // as long as the process, like a rank's
  std::size_t made = 0;
  for (const auto& [n, path] : {std::pair{2, "staged"}, std::pair{4, "auto"}, std::pair{2, "nccl"}, std::pair{2, "mpi"}}) {
    auto transports = dl::local_transports(n, 60);
    std::vector<std::thread> ranks;
    for (int i = 0; i < n; ++i, ++made)
      ranks.emplace_back([&, i, at = made, path = path] {
        dl::Settings settings;
        settings.timeout_s = 60;
        settings.shared_memory = "threads";
        // NCCL takes no two ranks on one GPU, and only nodes tell the fake's GPUs apart. CUDA IPC takes no threads.
        const bool apart = path == std::string("nccl") || path == std::string("mpi");
        settings.host = apart ? "ab"[i] : 'a';
        settings.pipeline_chunk_kb = settings.gpu_chunk_kb = 1;
        settings.num_cuda_streams = 2;
        settings.gpu_path = path;
        settings.cuda_library = settings.nccl_library = FAKE_GPU;
        sessions[at] = std::make_unique<dl::Session>(
            std::make_unique<Aware>(std::move(transports[static_cast<std::size_t>(i)])), settings);
        sessions[at]->create_team(0, 2, 0);
        reduce(*sessions[at]);
        sessions[at]->finalize(true);
      });
    for (std::thread& rank : ranks) rank.join();
  }
  return wrong;
}
