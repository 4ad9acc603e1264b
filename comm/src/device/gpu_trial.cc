// Known numbers are averaged over a GpuTeam's ranks before any gradient is: a driver, a link, an NCCL or an MPI that does
// not do what it says must not be met in training.
#include <algorithm>
#include <cmath>

#include "device/gpu_team.h"
#include "error.h"

namespace dl {
namespace {

constexpr std::size_t numbers = 1024;
constexpr unsigned timed = 0;  // CU_EVENT_DEFAULT
constexpr int rounds = 4;

// Two ranks on one H200 take 310 to 750 us for a sum where they have it in time slices, and 42 us under NVIDIA's MPS.
constexpr long soon_us = 120;

float of_rank(int rank, std::size_t i) { return static_cast<float>(rank % 8 + 1 + static_cast<int>(i % 8)); }

}  // namespace

// The scratch memory: two blocks, the trial's numbers, and what arrives from other nodes.
std::size_t GpuTeam::after_trial() const { return Blocks::footprint(settings_) + numbers * sizeof(float); }

// They lie in the scratch memory.
Flat GpuTeam::trial_numbers() const {
  const Cuda::Pointer trial = scratch_ + Blocks::footprint(settings_);
  const std::size_t n = std::min(numbers, Pipeline::footprint(settings_) / sizeof(float));
  return Flat({{reinterpret_cast<char*>(static_cast<std::uintptr_t>(trial)), n, Dtype::float32}});
}

// "": the ranks that sum among themselves got the right mean.
std::string GpuTeam::try_out() {
  const Cuda& cuda = gpu_->cuda;
  const int ranks = by_hosts_ ? static_cast<int>(layout_.node_of.size()) : neighbours_->size();
  const int me = by_hosts_ ? rank_ : neighbours_->rank();
  const Cuda::Pointer trial = scratch_ + Blocks::footprint(settings_);
  auto* const host = reinterpret_cast<float*>(pinned_);
  const Flat flat = trial_numbers();
  const std::size_t n = flat.size();
  const auto enqueue = [&] {
    for (std::size_t i = 0; i < n; ++i) host[i] = of_rank(me, i);
    cuda.copy_to_device(trial, host, n * sizeof(float), work_);
    sum_blocks(work_, flat, 0, ranks);
    cuda.copy_to_host(host, trial, n * sizeof(float), work_);
    cuda.event_record(ready_, work_);
    return "";
  };
  std::string trouble = by_hosts_ ? on_the_channel(enqueue) : ask("a trial of the ranks' GPUs", enqueue).trouble;
  if (!trouble.empty()) return trouble;
  trouble = until_all("a trial has ended", std::min(settings_.timeout_s, 60.0),
                      [&] { return cuda.event_query.allowing(Cuda::not_ready, ready_) == 0; });
  if (!trouble.empty()) return trouble;
  return ask("what the trial gave", [&] {
    for (std::size_t i = 0; i < n; ++i) {
      float right = 0;  // the sums are whole numbers, and exact
      for (int rank = 0; rank < ranks; ++rank) right += of_rank(rank, i);
      right /= static_cast<float>(ranks);
      if (host[i] != right)
        throw CommError("a trial gave " + std::to_string(host[i]) + " where " + std::to_string(right) + " is right");
    }
    return "";
  }).trouble;
}

// "": the ranks' streams meet soon. Ranks that share a GPU have it in time slices, unless NVIDIA's MPS lets them run at once; each
// meeting then waits for a time slice, of milliseconds where they compute, too. What goes through the host waits for none.
std::string GpuTeam::try_meetings() {
  const Cuda& cuda = gpu_->cuda;
  const Flat flat = trial_numbers();
  Cuda::Event marks[rounds + 1] = {};
  std::string trouble = ask("the time of a trial", [&] {
    for (Cuda::Event& mark : marks) cuda.event_create(&mark, timed);
    cuda.event_record(marks[0], work_);
    for (int round = 1; round <= rounds; ++round) {
      sum_blocks(work_, flat, 0, 1);
      cuda.event_record(marks[round], work_);
    }
    return "";
  }).trouble;
  const auto ended = [&] { return cuda.event_query.allowing(Cuda::not_ready, marks[rounds]) == 0; };
  if (trouble.empty()) trouble = until_all("a trial has ended", std::min(settings_.timeout_s, 60.0), ended);
  if (!trouble.empty()) return "failed: " + trouble;
  const Answers answers = ask("how long a trial took", [&] {
    float least = 0;  // the first waits for a rank that comes later
    for (int round = 1; round <= rounds; ++round) {
      float ms = 0;
      cuda.event_elapsed(&ms, marks[round - 1], marks[round]);
      least = round == 1 ? ms : std::min(least, ms);
    }
    return std::to_string(std::lround(1000 * least));
  });
  if (!answers.trouble.empty()) return "failed: " + answers.trouble;
  long us = 0;
  for (const std::string& answer : answers.all) us = std::max(us, std::stol(answer));
  if (us <= soon_us) return "";
  return "is slow: a sum takes " + std::to_string(us) + " us where ranks have a GPU in time slices; NVIDIA's MPS ends that";
}

// Where the ranks' hosts meet on the way, or MPI does not answer, all of them end in an error, and the team is lost.
std::string GpuTeam::on_the_channel(const std::function<void()>& enqueue) {
  try {
    team_.call({"a trial of MPI with the GPUs' memory", {}, {}}, [&](Channel& channel) {
      const Current here(*gpu_);
      by_hosts_->meet_on(channel);
      enqueue();
    });
    return "";
  } catch (const CommError& error) {
    return error.what();
  }
}

}  // namespace dl
