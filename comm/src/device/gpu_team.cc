#include "device/gpu_team.h"

#include <algorithm>
#include <utility>

#include "allreduce.h"
#include "broadcast.h"
#include "error.h"
#include "flat.h"
#include "reducer.h"
#include "second_opinion.h"

namespace dl {
namespace {

constexpr std::size_t most_flights = 1024;           // tickets that are remembered
constexpr unsigned non_blocking = 1, no_timing = 2;  // CU_STREAM_NON_BLOCKING, CU_EVENT_DISABLE_TIMING

}  // namespace

GpuTeam::GpuTeam(Team& team, Arena& arena, const Layout& layout, const Settings& settings, int rank, const void* address,
                 Cuda::Stream stream)
    : team_(team), arena_(arena), layout_(layout), settings_(settings), rank_(rank) {
  const std::vector<GpuPath> all = ways(address, stream);
  const Cuda& cuda = gpu_->cuda;
  const Current here(*gpu_);
  for (Cuda::Stream* made : {&gathering_, &work_}) cuda.stream_create(made, non_blocking);
  for (Cuda::Event* event : {&ready_, &summed_, &carried_[0], &carried_[1]}) cuda.event_create(event, no_timing);
  pin_memory();
  std::string failed;
  for (const GpuPath& path : all) {
    const bool has_reason = path.why.find(", since ") != std::string::npos;
    path_ = {path.way, path.why + (failed.empty() ? "" : (has_reason ? ", and " : ", since ") + failed), path.hint};
    const std::string trouble = open(path);
    if (trouble.empty()) return;
    failed += (failed.empty() ? "" : ", and ") + path.why.substr(0, path.why.find(", since ")) + " " + trouble;
  }
  throw CommError("DL_COMM_GPU_PATH is " + settings_.gpu_path + ", but " + failed, "leave it out, and another way is taken");
}

double GpuTeam::divisor(Op op) const { return op == Op::mean ? static_cast<double>(layout_.node_of.size()) : 1.0; }

std::uint64_t GpuTeam::allreduce(const Message& message, Op op, Cuda::Stream stream) {
  check(message, stream);
  if (on_the_gpus(message, op)) {
    if (by_hosts_)
      return by_a_thread(message, stream, [this, arrays = message.buffers, op](Channel&) { sum_on_gpus(work_, arrays, op); });
    if (path_.way != Way::nccl && layout_.nodes > 1) return over_nodes(message, op, stream);
    return among_gpus(message, stream, [&](Cuda::Stream work) { sum_on_gpus(work, message.buffers, op); });
  }
  const double by = divisor(op);
  return through_host(
      message, message.buffers,
      [this, op, by](Channel& channel, const Buffer& chunk) {
        const Message one{"a chunk from the GPU", {chunk}, {}};
        const bool checked = settings_.check > 0;
        const auto second = checked ? std::make_unique<SecondOpinion>(one, op) : nullptr;
        const Flat flat({chunk});
        channel.meet();
        allreduce_direct(channel, {flat, 0, flat.size(), reducer(chunk.dtype, op, team_.precision()), by}, arena_);
        if (checked) second->compare(channel.everyone(), settings_.check);
      },
      stream);
}

std::uint64_t GpuTeam::broadcast(const Message& message, int root, Cuda::Stream stream) {
  check(message, stream);
  if (path_.way == Way::nccl)
    return among_gpus(message, stream, [&](Cuda::Stream work) {
      for (const Flat& flat : by_type(message.buffers)) nccl_->broadcast(work, flat, root);
    });
  std::vector<Buffer> raw;
  for (const Buffer& buffer : message.buffers) raw.push_back({buffer.data, buffer.count * width(buffer.dtype), Dtype::uint8});
  return through_host(
      message, raw, [root](Channel& channel, const Buffer& chunk) { dl::broadcast(channel, {"", {chunk}, {}}, root); }, stream);
}

std::uint64_t GpuTeam::through_host(const Message& message, const std::vector<Buffer>& buffers, Combine combine,
                                    Cuda::Stream stream) {
  const auto plan = std::make_shared<Plan>();
  for (Flat& flat : by_type(buffers)) {
    const Flat& kept = plan->flats.emplace_back(std::move(flat));
    plan->cut(kept, kept.size(), Pipeline::chunk_bytes(settings_));
  }
  if (by_hosts_) return chunk_by_chunk(message, plan, std::move(combine), stream);
  return start(message, plan, std::move(combine), stream, [&](std::size_t sharers, Cuda::Event done) {
    send(*plan, 0, plan->chunks.size(), sharers, ready_);
    gpu_->cuda.event_record(done, gathering_);
  });
}

void GpuTeam::send(const Plan& plan, std::size_t begin, std::size_t end, std::size_t sharers, Cuda::Event after) {
  for (std::size_t at = 0; at < sharers; ++at) pipelines_[at]->begin_after(after);
  for (std::size_t i = begin; i < end; ++i)
    pipelines_[i % sharers]->send(plan.chunks[i].flat, plan.chunks[i].first, plan.chunks[i].n);
  for (std::size_t at = 0; at < sharers; ++at) pipelines_[at]->finish_before(gathering_);
}

std::uint64_t GpuTeam::start(const Message& message, const std::shared_ptr<Plan>& plan, Combine combine, Cuda::Stream stream,
                             const std::function<void(std::size_t sharers, Cuda::Event done)>& enqueue) {
  const std::size_t sharers = std::max<std::size_t>(1, std::min(pipelines_.size(), plan->chunks.size()));
  const std::lock_guard<std::mutex> lock(guard_);
  const Current here(*gpu_);
  for (const auto& pipeline : pipelines_) plan->begin.push_back(pipeline->next());
  gpu_->cuda.event_record(ready_, stream);
  Flight flight = take_event();
  auto work = [this, plan, sharers, combine = std::move(combine)](Channel& channel, int thread) {
    const auto at = static_cast<std::size_t>(thread);
    std::uint32_t number = plan->begin[at];
    for (std::size_t i = at; i < plan->chunks.size(); i += sharers, ++number) {
      const Plan::Chunk& chunk = plan->chunks[i];
      combine(channel, {pipelines_[at]->await(number), chunk.n, chunk.flat.dtype()});
      pipelines_[at]->give_back(number);
    }
  };
  auto otherwise = [this, plan, sharers](std::exception_ptr error) {
    remember(std::move(error));
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
    enqueue(sharers, flight.done);
  } catch (const CommError& error) {
    for (const auto& pipeline : pipelines_) pipeline->abandon(error.what());
    if (neighbours_) neighbours_->let_go(work_);
    throw;
  }
  return keep(flight);
}

void GpuTeam::follow(std::uint64_t ticket, Cuda::Stream stream) {
  if (by_hosts_) await_result(ticket);
  throw_failure();
  const std::lock_guard<std::mutex> lock(guard_);
  const Current here(*gpu_);
  gpu_->cuda.stream_wait_event(stream, end_of(ticket), 0);
}

Cuda::Event GpuTeam::end_of(std::uint64_t ticket) const {
  const auto found = flights_.find(ticket);
  if (found == flights_.end()) throw CommError("no reduction on the GPU has the ticket " + std::to_string(ticket));
  return found->second.done;
}

void GpuTeam::finish(std::uint64_t ticket) {
  await_result(ticket);
  const std::lock_guard<std::mutex> lock(guard_);
  const Current here(*gpu_);
  wait_for(gpu_->cuda, end_of(ticket));
}

void GpuTeam::await_result(std::uint64_t ticket) {
  std::uint64_t job = 0;
  {
    const std::lock_guard<std::mutex> lock(guard_);
    const auto found = flights_.find(ticket);
    if (found != flights_.end()) std::swap(job, found->second.job);
  }
  try {
    if (job != 0) team_.wait(job);
  } catch (...) {
    remember(nullptr);  // it is told now
    throw;
  }
}

void GpuTeam::remember(std::exception_ptr error) {
  const std::lock_guard<std::mutex> held(failure_guard_);
  failure_ = std::move(error);
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
void GpuTeam::check(const Message& message, Cuda::Stream stream) {
  throw_failure();
  const Current here(*gpu_);
  refuse_capture(gpu_->cuda, stream);
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
