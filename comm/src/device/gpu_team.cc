#include "device/gpu_team.h"

#include <algorithm>
#include <utility>

#include "allreduce.h"
#include "broadcast.h"
#include "check.h"
#include "error.h"
#include "flat.h"
#include "reducer.h"

namespace dl {
namespace {

constexpr std::size_t most_flights = 1024;           // tickets that are remembered
constexpr unsigned non_blocking = 1, no_timing = 2;  // CU_STREAM_NON_BLOCKING, CU_EVENT_DISABLE_TIMING

}  // namespace

// Which elements are which chunks. Chunk i is combined by thread i modulo their number.
struct GpuTeam::Plan {
  struct Chunk {
    const Flat& flat;
    std::size_t first, n;
  };
  Plan(const std::vector<Buffer>& buffers, std::size_t chunk_bytes) : flats(by_type(buffers)) {
    for (const Flat& flat : flats) {
      const std::size_t step = std::max<std::size_t>(1, chunk_bytes / width(flat.dtype()));
      for (std::size_t first = 0; first < flat.size(); first += step)
        chunks.push_back({flat, first, std::min(step, flat.size() - first)});
    }
  }
  std::vector<Flat> flats;
  std::vector<Chunk> chunks;
  std::vector<std::uint32_t> begin;  // of each pipeline: the number of its first chunk
};

GpuTeam::GpuTeam(Team& team, Arena& arena, const Layout& layout, const Settings& settings, int rank, const void* address)
    : team_(team), arena_(arena), layout_(layout), settings_(settings), rank_(rank) {
  find_path(address);
  if (path_.nccl) join_nccl();
  pin_memory();
  const Current here(*gpu_);
  gpu_->cuda.stream_create(&gathering_, non_blocking);
  gpu_->cuda.event_create(&ready_, no_timing);
}

std::uint64_t GpuTeam::allreduce(const Message& message, Op op, Cuda::Stream stream) {
  check(message);
  if (nccl_ && nccl_fits(message.buffers, team_.precision())) {
    team_.call(message, [](Lane&) {});  // NCCL would hang, or worse, where the ranks mean different calls
    return through_nccl(message, op, stream);
  }
  const double divisor = op == Op::mean ? static_cast<double>(layout_.node_of.size()) : 1.0;
  return start(
      message, message.buffers,
      [this, op, divisor](Lane& lane, const Buffer& chunk) {
        const Message one{"a chunk from the GPU", {chunk}, {}};
        const bool checked = settings_.check > 0;
        const auto second = checked ? std::make_unique<Check>(one, op) : nullptr;
        const Flat flat({chunk});
        lane.meet();
        allreduce_direct(lane, {flat, 0, flat.size(), reducer(chunk.dtype, op, team_.precision()), divisor}, arena_);
        if (checked) second->compare(lane.everyone(), settings_.check);
      },
      stream);
}

std::uint64_t GpuTeam::through_nccl(const Message& message, Op op, Cuda::Stream stream) {
  const std::lock_guard<std::mutex> lock(guard_);
  const Current here(*gpu_);
  try {
    const Flight flight = take_event();
    gpu_->cuda.event_record(ready_, stream);
    nccl_->begin_after(ready_);
    nccl_->all_reduce(message.buffers, op);
    nccl_->finish_before(gathering_);
    gpu_->cuda.event_record(flight.done, gathering_);
    return keep(flight);
  } catch (const CommError& error) {
    team_.raise("rank " + std::to_string(rank_) + " gave up on " + message.subject() + ": " + error.what());
    throw;
  }
}

std::uint64_t GpuTeam::broadcast(const Message& message, int root, Cuda::Stream stream) {
  check(message);
  std::vector<Buffer> raw;
  for (const Buffer& buffer : message.buffers) raw.push_back({buffer.data, buffer.count * width(buffer.dtype), Dtype::uint8});
  return start(
      message, raw, [root](Lane& lane, const Buffer& chunk) { dl::broadcast(lane, {"", {chunk}, {}}, root); }, stream);
}

std::uint64_t GpuTeam::start(const Message& message, const std::vector<Buffer>& buffers, Combine combine,
                             Cuda::Stream stream) {
  const auto plan = std::make_shared<Plan>(buffers, Pipeline::chunk_bytes(settings_));
  const std::size_t sharers = std::max<std::size_t>(1, std::min(pipelines_.size(), plan->chunks.size()));
  const std::lock_guard<std::mutex> lock(guard_);
  const Current here(*gpu_);
  for (const auto& pipeline : pipelines_) plan->begin.push_back(pipeline->next());
  gpu_->cuda.event_record(ready_, stream);
  Flight flight = take_event();
  auto work = [this, plan, sharers, combine = std::move(combine)](Lane& lane, int thread) {
    const auto at = static_cast<std::size_t>(thread);
    std::uint32_t number = plan->begin[at];
    for (std::size_t i = at; i < plan->chunks.size(); i += sharers, ++number) {
      const Plan::Chunk& chunk = plan->chunks[i];
      combine(lane, {pipelines_[at]->await(number), chunk.n, chunk.flat.dtype()});
      pipelines_[at]->give_back(number);
    }
  };
  auto otherwise = [this, plan, sharers](std::exception_ptr error) {
    {
      const std::lock_guard<std::mutex> held(failure_guard_);
      failure_ = std::move(error);
    }
    for (std::size_t at = 0; at < sharers; ++at) {
      const std::size_t count = (plan->chunks.size() + sharers - 1 - at) / sharers;
      try {
        if (count > 0) pipelines_[at]->give_up(plan->begin[at], plan->begin[at] + static_cast<std::uint32_t>(count) - 1);
      } catch (const CommError&) {
        // the framework's thread has failed, and told why
      }
    }
  };
  // The team's threads begin first: the driver may make us wait until there is room for more on the streams.
  flight.job = team_.start(message, static_cast<int>(sharers), std::move(work), std::move(otherwise));
  try {
    for (std::size_t at = 0; at < sharers; ++at) pipelines_[at]->begin_after(ready_);
    for (std::size_t i = 0; i < plan->chunks.size(); ++i) {
      const Plan::Chunk& chunk = plan->chunks[i];
      pipelines_[i % sharers]->send(chunk.flat, chunk.first, chunk.n);
    }
    for (std::size_t at = 0; at < sharers; ++at) pipelines_[at]->finish_before(gathering_);
    gpu_->cuda.event_record(flight.done, gathering_);
  } catch (const CommError& error) {
    for (const auto& pipeline : pipelines_) pipeline->abandon(error.what());
    throw;
  }
  return keep(flight);
}

void GpuTeam::follow(std::uint64_t ticket, Cuda::Stream stream) {
  throw_failure();
  const std::lock_guard<std::mutex> lock(guard_);
  const auto found = flights_.find(ticket);
  if (found == flights_.end()) throw CommError("no reduction on the GPU has the ticket " + std::to_string(ticket));
  const Current here(*gpu_);
  gpu_->cuda.stream_wait_event(stream, found->second.done, 0);
}

void GpuTeam::settle(std::uint64_t ticket) {
  std::uint64_t job = 0;
  {
    const std::lock_guard<std::mutex> lock(guard_);
    const auto found = flights_.find(ticket);
    if (found != flights_.end()) std::swap(job, found->second.job);
  }
  try {
    if (job != 0) team_.wait(job);
  } catch (...) {
    const std::lock_guard<std::mutex> held(failure_guard_);
    failure_ = nullptr;  // it is told now
    throw;
  }
}

void GpuTeam::throw_failure() {
  std::exception_ptr error;
  {
    const std::lock_guard<std::mutex> held(failure_guard_);
    std::swap(error, failure_);
  }
  if (error) std::rethrow_exception(error);
}

// All arrays must lie on the GPU that the team was made for.
void GpuTeam::check(const Message& message) {
  throw_failure();
  for (const Buffer& buffer : message.buffers) {
    if (buffer.count == 0) continue;
    const int ordinal = device_of(gpu_->cuda, buffer.data);
    if (ordinal != gpu_->ordinal)
      throw CommError("an array lies on GPU " + std::to_string(ordinal) + ", but this team's are on GPU " + std::to_string(gpu_->ordinal),
                      "a rank's arrays in one team lie on one GPU");
  }
}

GpuTeam::Flight GpuTeam::take_event() {
  if (idle_.empty()) {
    idle_.push_back(nullptr);
    gpu_->cuda.event_create(&idle_.back(), no_timing);
  }
  Flight flight{idle_.back(), 0};
  idle_.pop_back();
  return flight;
}

std::uint64_t GpuTeam::keep(Flight flight) {
  flights_[++tickets_] = flight;
  while (flights_.size() > most_flights) {
    const Flight oldest = flights_.begin()->second;
    flights_.erase(flights_.begin());
    idle_.push_back(oldest.done);
    try {
      if (oldest.job != 0) team_.wait(oldest.job);
    } catch (const CommError&) {
      // failure_ holds it for the next call
    }
  }
  return tickets_;
}

}  // namespace dl
