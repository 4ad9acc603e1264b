// Reductions of a GpuTeam whose sums are formed on the GPUs: among all of them, or within each node, with the host or MPI
// between the nodes.
#include "across.h"
#include "device/gpu_team.h"
#include "error.h"
#include "reducer.h"

namespace dl {

bool GpuTeam::by_nccl_alone(Dtype dtype, Op op) const {
  return path_.way == Way::nccl && NcclTeam::sums(dtype, op) && (dtype != Dtype::float32 || team_.precision() == 0);
}

bool GpuTeam::on_the_gpus(const Message& message, Op op) const {
  if (!neighbours_) return false;
  for (const Buffer& buffer : message.buffers)
    if (!by_nccl_alone(buffer.dtype, op) && !Blocks::sums(buffer.dtype, op, team_.precision())) return false;
  return true;
}

// The ranks agree first: their GPUs would wait for each other for ever where they mean different calls.
std::uint64_t GpuTeam::among_gpus(const Message& message, Cuda::Stream stream,
                                  const std::function<void(Cuda::Stream)>& enqueue) {
  const std::lock_guard<std::mutex> turn(order_);
  team_.call(message, [](Channel&) {});
  const std::lock_guard<std::mutex> lock(guard_);
  const Current here(*gpu_);
  try {
    const Flight flight = take_event();
    gpu_->cuda.event_record(ready_, stream);
    gpu_->cuda.stream_wait_event(work_, ready_, 0);
    enqueue(work_);
    gpu_->cuda.event_record(flight.done, work_);
    return keep(flight);
  } catch (const CommError& error) {
    neighbours_->let_go(work_);
    team_.fail(message, error);
    throw;
  }
}

void GpuTeam::sum_on_gpus(Cuda::Stream stream, const std::vector<Buffer>& buffers, Op op) {
  std::size_t done = 0;
  for (const Flat& flat : by_type(buffers)) {
    if (by_nccl_alone(flat.dtype(), op)) {
      nccl_->all_reduce(stream, flat, op);
      continue;
    }
    done += sum_blocks(stream, flat, done, divisor(op));
  }
}

// Returns how many they were.
std::size_t GpuTeam::sum_blocks(Cuda::Stream stream, const Flat& flat, std::size_t blocks_before, double divisor) {
  const auto blocks = blocks_->cut(flat, blocks_before);
  for (const Blocks::Block& block : blocks) {
    blocks_->sum(stream, block);
    if (by_hosts_) by_hosts_->sum_over_nodes(stream, block.slice);
    blocks_->finish(stream, block, divisor);
  }
  return blocks.size();
}

// As pipeline.h does on the host: while a block's slice is on its way over the nodes, the next one is summed.
std::uint64_t GpuTeam::over_nodes(const Message& message, Op op, Cuda::Stream stream) {
  const std::lock_guard<std::mutex> turn(order_);
  team_.call(message, [](Channel&) {});
  const std::vector<Flat> flats = by_type(message.buffers);
  const auto plan = std::make_shared<Plan>();
  std::deque<Blocks::Block> blocks;
  std::vector<std::size_t> sent{0};  // chunks before each block
  for (const Flat& flat : flats)
    for (const Blocks::Block& block : blocks_->cut(flat, blocks.size())) {
      blocks.push_back(block);
      plan->cut(plan->flats.emplace_back(std::vector<Buffer>{block.slice}), block.each, Pipeline::chunk_bytes(settings_));
      sent.push_back(plan->chunks.size());
    }
  const auto carry = [](Channel& channel, const Buffer& chunk) {
    const Flat flat({chunk});
    sum_across_nodes(channel, {flat, 0, flat.size(), reducer(chunk.dtype, Op::sum, 0), 1.0});
  };
  return start(message, plan, carry, stream, [&](std::size_t sharers, Cuda::Event done) {
    const Cuda& cuda = gpu_->cuda;
    cuda.stream_wait_event(work_, ready_, 0);
    for (std::size_t k = 0; k <= blocks.size(); ++k) {
      if (k < blocks.size()) {
        blocks_->sum(work_, blocks[k]);
        cuda.event_record(summed_, work_);
        send(*plan, sent[k], sent[k + 1], sharers, summed_);
        cuda.event_record(carried_[k % 2], gathering_);
      }
      if (k > 0) {
        cuda.stream_wait_event(work_, carried_[(k - 1) % 2], 0);
        blocks_->finish(work_, blocks[k - 1], divisor(op));
      }
    }
    cuda.event_record(done, work_);
  });
}

}  // namespace dl
