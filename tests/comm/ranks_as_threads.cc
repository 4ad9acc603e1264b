// Collective calls among ranks that are threads of one process, for the sanitizers: everything that ranks share is then
// memory of one program. Ends with 0 if all results are right.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "error.h"
#include "pipeline.h"
#include "session.h"
#include "transport_local.h"
#include "wait.h"

int wrong_with_gpus();  // device/ranks_with_gpus.cc

namespace {

using Body = std::function<void(dl::Session&)>;

int failures = 0;

void need(bool right, const std::string& what) {
  if (right) return;
  std::fprintf(stderr, "wrong: %s\n", what.c_str());
  __atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED);
}

// Runs `body` on n ranks; ranks i with the same hosts[i % hosts.size()] share a node.
// `wire` is the table of DL_COMM_WIRE; `wire_dtype` is DL_COMM_WIRE_DTYPE.
void on_ranks(int n, const std::vector<std::string>& hosts, const std::string& wire, const Body& body,
              const std::string& wire_dtype = "same") {
  auto transports = dl::local_transports(n, 60);
  std::vector<std::thread> ranks;
  for (int i = 0; i < n; ++i)
    ranks.emplace_back([&, i] {
      dl::Settings settings;
      settings.timeout_s = 60;
      settings.shared_memory = "threads";
      settings.stage_kb = 4;
      settings.pipeline_chunk_kb = wire_dtype == "same" ? 1 : 64;  // little data are not packed
      settings.wire_dtype = wire_dtype;
      settings.wire = dl::wire_table(wire);
      settings.host = hosts[static_cast<std::size_t>(i) % hosts.size()];
      dl::Session session(std::move(transports[static_cast<std::size_t>(i)]), settings);
      body(session);
      session.finalize(true);
    });
  for (std::thread& rank : ranks) rank.join();
}

template <class T>
dl::Buffer buffer(std::vector<T>& values, dl::Dtype dtype) {
  return {reinterpret_cast<char*>(values.data()), values.size(), dtype};
}

// Sums of many lengths, back to back, so that the stage is reused while a late rank may still read it.
void sums(dl::Session& session) {
  std::mt19937 same(7);
  const int n = session.size();
  for (int step = 0; step < 60; ++step) {
    const std::size_t length = std::uniform_int_distribution<std::size_t>(0, 9000)(same);
    std::vector<float> values(length, static_cast<float>(session.rank() + step));
    std::vector<double> more(length / 3, session.rank());
    session.allreduce({"sums", {buffer(values, dl::Dtype::float32), buffer(more, dl::Dtype::float64)}, {}}, dl::Op::sum, 0);
    for (const float value : values) need(value == static_cast<float>(n * step + n * (n - 1) / 2), "sum of floats");
    for (const double value : more) need(value == n * (n - 1) / 2, "sum of doubles");
  }
}

// Little data among much, back to back: a result must not be overwritten before the last rank of the node has fetched it.
void little(dl::Session& session) {
  const int n = session.size();
  for (int step = 0; step < 120; ++step) {
    const std::size_t length = step % 5 == 4 ? 3000 : static_cast<std::size_t>(1 + step * 7);
    std::vector<float> values(length, static_cast<float>(session.rank() + step));
    session.allreduce({"little", {buffer(values, dl::Dtype::float32)}, {}}, dl::Op::sum, 0);
    for (const float value : values) need(value == static_cast<float>(n * step + n * (n - 1) / 2), "sum of few floats");
    if (step % 3 == 0 && session.rank() % 2 == 1) std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
}

void arena(dl::Session& session) {
  constexpr std::size_t length = 5000;
  auto* values = reinterpret_cast<float*>(session.arena(length * sizeof(float)));
  for (int step = 0; step < 20; ++step) {
    for (std::size_t i = 0; i < length; ++i) values[i] = static_cast<float>(session.rank() * 2 + step);
    session.allreduce({"arena", {{reinterpret_cast<char*>(values), length, dl::Dtype::float32}}, {}}, dl::Op::mean, 0);
    for (std::size_t i = 0; i < length; ++i)
      need(std::fabs(values[i] - static_cast<float>(session.size() - 1 + step)) < 1e-5f, "mean in the arena");
  }
}

void teams(dl::Session& session) {
  auto reduce_on = [&](int team) {
    for (int step = 0; step < 20; ++step) {
      std::vector<float> values(3000, static_cast<float>(session.rank() * (team + 1)));
      session.allreduce({"teams", {buffer(values, dl::Dtype::float32)}, {}}, dl::Op::max, team);
      need(values.front() == static_cast<float>((session.size() - 1) * (team + 1)), "max on a team");
    }
  };
  std::thread other(reduce_on, 1);
  reduce_on(2);
  other.join();
}

void background(dl::Session& session) {
  std::vector<std::vector<std::int64_t>> arrays(6, std::vector<std::int64_t>(2000, session.rank()));
  std::vector<std::uint64_t> tickets;
  for (auto& array : arrays) tickets.push_back(session.start({"started", {buffer(array, dl::Dtype::int64)}, {}}, dl::Op::sum, 0));
  session.barrier();
  for (const std::uint64_t ticket : tickets) session.wait(ticket);
  for (const auto& array : arrays) need(array.back() == session.size() * (session.size() - 1) / 2, "started sum");
}

void disagreement(dl::Session& session) {
  std::vector<float> values(static_cast<std::size_t>(5 + session.rank() % 2));
  bool thrown = session.size() == 1;
  try {
    session.allreduce({"unequal", {buffer(values, dl::Dtype::float32)}, {"w"}}, dl::Op::sum, 0);
  } catch (const dl::Disagreement&) {
    thrown = true;
  }
  need(thrown, "unequal lengths are refused");
}

void broadcast(dl::Session& session) {
  for (int root = 0; root < session.size(); ++root) {
    std::vector<float> values(7000, static_cast<float>(session.rank()));
    session.broadcast({"values", {buffer(values, dl::Dtype::float32)}, {}}, root);
    need(values.back() == static_cast<float>(root), "broadcast");
  }
  const auto all = session.allgather_bytes(std::string(static_cast<std::size_t>(session.rank()), 'x'));
  for (int rank = 0; rank < session.size(); ++rank)
    need(all[static_cast<std::size_t>(rank)].size() == static_cast<std::size_t>(rank), "allgather");
}

// Carrying a block waits until the next has been summed and the one before has been given, so this ends only if they
// overlap. An error on the way is thrown on, and nothing is carried afterwards.
void pipeline() {
  constexpr std::size_t blocks = 6;
  std::mutex guard;
  std::condition_variable changed;
  std::size_t summed = 0, given = 0;
  auto count = [&](std::size_t& what) {
    const std::lock_guard<std::mutex> lock(guard);
    ++what;
    changed.notify_all();
  };
  dl::Queue progress;
  std::vector<std::size_t> carried;
  auto run = [&](std::size_t bad) {
    dl::pipelined(
        blocks, &progress, [&](std::size_t) { count(summed); },
        [&](std::size_t k) {
          std::unique_lock<std::mutex> lock(guard);
          const bool in_time = changed.wait_for(lock, std::chrono::seconds(30), [&] {
            return summed >= std::min(k + 2, blocks) && given >= k;
          });
          need(in_time, "a block is carried while its neighbours are worked on");
          carried.push_back(k);
          if (k == bad) throw dl::CommError("lost");
        },
        [&](std::size_t) { count(given); },
        [&] {
          const std::lock_guard<std::mutex> lock(guard);
          summed = given = blocks;
          changed.notify_all();
        });
  };
  run(blocks);
  need(carried == std::vector<std::size_t>({0, 1, 2, 3, 4, 5}), "blocks are carried in order");
  summed = given = 0;
  carried.clear();
  try {
    run(2);
    need(false, "the error of a block is thrown on");
  } catch (const dl::CommError& error) {
    need(std::string(error.what()) == "lost", "the error of a block is thrown on");
  }
  need(carried.size() >= 3 && carried.size() <= 4, "what was on the way is awaited, and no more is sent");
}

// Who comes and leaves between two looks at the counter has come; who leaves without coming has not.
void coming_and_leaving() {
  for (const bool comes : {true, false}) {
    dl::Counter counter{};
    bool thrown = false;
    try {
      dl::await(counter, 1, {1, 1}, [&] {
        if (comes) dl::advance(counter, 1);
        throw dl::CommError("it has left");
      });
    } catch (const dl::CommError&) {
      thrown = true;
    }
    need(thrown != comes, "a rank that leaves is missed only where it has not come");
  }
}

}  // namespace

int main() {
  pipeline();
  coming_and_leaving();
  const std::vector<std::vector<std::string>> shapes = {{"a"}, {"a", "b"}, {"a", "a", "b"}, {"a", "b", "c", "d"}};
  for (const auto& hosts : shapes)
    for (const int n : {2, 3, 4})
      on_ranks(n, hosts, "", [](dl::Session& session) {
        for (const auto& part : {sums, little, arena, teams, background, disagreement, broadcast}) part(session);
      });
  for (const char* wire : {"*:doubling", "*:ring", "*:halving"})
    on_ranks(5, {"a", "b", "c", "a"}, wire, [](dl::Session& session) {
      for (const auto& part : {sums, arena, teams}) part(session);
    });
  // Small whole numbers are exact in float16.
  on_ranks(5, {"a", "b", "c", "a"}, "", [](dl::Session& session) { sums(session); }, "float16");
  failures += wrong_with_gpus();
  std::printf("%d wrong\n", failures);
  return failures == 0 ? 0 : 1;
}
