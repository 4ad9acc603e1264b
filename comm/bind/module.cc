// dl_comm._core: a table of contents over Session. Python holds no logic of the core, and the core no Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "error.h"
#include "launcher.h"
#include "new_means.h"
#include "process.h"
#include "reducer.h"
#include "session.h"
#include "transport_local.h"
#include "wait.h"

namespace nb = nanobind;
using dl::Session;

namespace {

using Bare = std::tuple<std::uintptr_t, std::size_t, std::string>;  // address, elements, NumPy's name of the type
using Names = std::vector<std::string>;

thread_local std::exception_ptr raised_by_handler;  // what Python's handler of a signal raised: KeyboardInterrupt

bool handler_raises() {
  const nb::gil_scoped_acquire held;
  if (PyErr_CheckSignals() == 0) return false;
  raised_by_handler = std::make_exception_ptr(nb::python_error());
  return true;
}

// Calls without the GIL. Ctrl-C ends the wait: what its handler raises is thrown then.
template <class Call>
auto collective(Call call) {
  const nb::gil_scoped_release released;
  const dl::Interruptible here(handler_raises);
  try {
    return call();
  } catch (const dl::CommError&) {
    if (raised_by_handler) std::rethrow_exception(std::exchange(raised_by_handler, nullptr));
    throw;
  }
}

dl::Message message(const std::string& call, const std::vector<Bare>& bare, const Names& names) {
  dl::Message made{call, {}, names};
  made.buffers.reserve(bare.size());
  for (const auto& [address, count, dtype] : bare)
    made.buffers.push_back({reinterpret_cast<char*>(address), count, dl::dtype_named(dtype)});
  return made;
}

void allreduce(Session& session, const std::vector<Bare>& buffers, const std::string& op, int team, const Names& names) {
  const dl::Message what = message("allreduce (" + op + ")", buffers, names);
  const dl::Op how = dl::op_named(op);
  collective([&] { session.allreduce(what, how, team); });
}

// The means of NumPy's arrays as new ones; None if these are others, which have to be brought another way.
nb::object means(Session& session, nb::handle arrays, int team) {
  static const std::string call = "allreduce (mean)";
  std::optional<dl::NewMeans> own = dl::NewMeans::of(arrays);
  if (!own) return nb::none();
  const dl::Message what{call, own->buffers(), own->shapes()};
  collective([&] { session.allreduce(what, dl::Op::mean, team); });
  return own->made();
}

std::uint64_t start(Session& session, const std::vector<Bare>& buffers, const std::string& op, int team,
                    const Names& names) {
  dl::Message what = message("allreduce (" + op + ")", buffers, names);
  return collective([&] { return session.start(std::move(what), dl::op_named(op), team); });
}

void broadcast(Session& session, const std::vector<Bare>& buffers, int root, const Names& names) {
  const dl::Message what = message("broadcast from rank " + std::to_string(root), buffers, names);
  collective([&] { session.broadcast(what, root); });
}

// The same for arrays on this rank's GPU: they return a ticket at once.
std::uint64_t allreduce_on_gpu(Session& session, const std::vector<Bare>& buffers, const std::string& op, int team,
                               const Names& names, std::uintptr_t stream) {
  const dl::Message what = message("allreduce (" + op + ") on a GPU", buffers, names);
  const nb::gil_scoped_release released;
  return session.allreduce_on_gpu(what, dl::op_named(op), team, stream);
}

std::uint64_t broadcast_on_gpu(Session& session, const std::vector<Bare>& buffers, int root, int team, const Names& names,
                               std::uintptr_t stream) {
  const dl::Message what = message("broadcast from rank " + std::to_string(root) + " on a GPU", buffers, names);
  const nb::gil_scoped_release released;
  return session.broadcast_on_gpu(what, root, team, stream);
}

nb::bytes broadcast_bytes(Session& session, const nb::bytes& data, int root) {
  const std::string mine(data.c_str(), data.size());
  const std::string text = collective([&] { return session.broadcast_bytes(mine, root); });
  return nb::bytes(text.data(), text.size());
}

nb::list allgather_bytes(Session& session, const nb::bytes& data) {
  const std::string mine(data.c_str(), data.size());
  const std::vector<std::string> all = collective([&] { return session.allgather_bytes(mine); });
  nb::list result;
  for (const std::string& text : all) result.append(nb::bytes(text.data(), text.size()));
  return result;
}

// When the reduction began and ended, in ns of the steady clock.
std::pair<std::int64_t, std::int64_t> wait(Session& session, std::uint64_t ticket) {
  const dl::Span span = collective([&] { return session.wait(ticket); });
  const auto ns = [](auto time) { return std::chrono::nanoseconds(time.time_since_epoch()).count(); };
  return {ns(span.begin), ns(span.end)};
}

nb::object arena(Session& session, std::size_t bytes) {
  char* const memory = collective([&] { return session.arena(bytes); });
  return nb::steal(PyMemoryView_FromMemory(memory, static_cast<Py_ssize_t>(bytes), PyBUF_WRITE));
}

// n sessions whose ranks are threads of this process; hosts[i] names the node of rank i (all on one if empty).
std::vector<Session*> local_sessions(int n, const Names& hosts, double timeout_s, const std::string& shared_memory,
                                     int stage_kb, int threads, const std::string& wire, int pipeline_chunk_kb,
                                     double check, const std::string& wire_dtype, int wire_ranks,
                                     const std::string& gpu_path, const std::string& cuda_library,
                                     int num_cuda_streams) {
  const nb::gil_scoped_release released;
  auto transports = dl::local_transports(n, timeout_s);
  std::vector<Session*> sessions(static_cast<std::size_t>(n));
  std::vector<std::thread> ranks;
  std::exception_ptr error;
  std::mutex guard;
  for (std::size_t i = 0; i < sessions.size(); ++i)
    ranks.emplace_back([&, i] {
      try {
        dl::Settings settings;
        settings.timeout_s = timeout_s;
        settings.shared_memory = shared_memory;
        settings.stage_kb = static_cast<std::size_t>(stage_kb);
        settings.default_nthreads = settings.gpu_nthreads = threads;
        dl::set_wire(settings, wire);
        settings.wire_dtype = wire_dtype;
        settings.wire_ranks = wire_ranks;
        settings.pipeline_chunk_kb = settings.gpu_chunk_kb = static_cast<std::size_t>(pipeline_chunk_kb);
        settings.check = check;
        settings.gpu_path = gpu_path;
        settings.cuda_library = cuda_library;
        settings.num_cuda_streams = num_cuda_streams;
        settings.host = hosts.empty() ? "one" : hosts[i];
        sessions[i] = new Session(std::move(transports[i]), settings);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(guard);
        error = std::current_exception();
      }
    });
  for (std::thread& rank : ranks) rank.join();
  if (error) std::rethrow_exception(error);
  return sessions;
}

void init(const std::string& mpi_library) {
  const auto prefix = nb::cast<std::string>(nb::module_::import_("sys").attr("prefix"));
  collective([&] { dl::join(mpi_library, prefix); });
}

void raise_comm_error(const dl::CommError& error) {
  try {
    const nb::object type = nb::module_::import_("dl_comm.errors").attr("CommError");
    const nb::object made = type(std::string(error.what()), error.hint());
    PyErr_SetObject(type.ptr(), made.ptr());
  } catch (nb::python_error& other) {  // a signal's handler ran in between, and raised
    other.restore();
  }
}

}  // namespace

NB_MODULE(_core, m) {
  nb::set_leak_warnings(false);  // sessions live as long as the process
  nb::register_exception_translator([](const std::exception_ptr& held, void*) {
    try {
      std::rethrow_exception(held);
    } catch (const dl::CommError& error) {
      raise_comm_error(error);
    }
  });

  const auto released = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<Session>(m, "Session")
      .def("rank", &Session::rank)
      .def("size", &Session::size)
      .def("local_rank", &Session::local_rank)
      .def("local_size", &Session::local_size)
      .def("node", &Session::node)
      .def("nodes", &Session::nodes)
      .def("without_shared_memory", &Session::without_shared_memory)
      .def("create_team", &Session::create_team, nb::arg("team"), nb::arg("threads"), nb::arg("precision") = 0, released)
      .def("allreduce", allreduce, nb::arg("buffers"), nb::arg("op") = "mean", nb::arg("team") = 0,
           nb::arg("names") = Names())
      .def("means", means, nb::arg("arrays"), nb::arg("team") = 0)
      .def("start", start, nb::arg("buffers"), nb::arg("op") = "mean", nb::arg("team") = 0, nb::arg("names") = Names())
      .def("wait", wait, nb::arg("ticket"))
      .def("broadcast", broadcast, nb::arg("buffers"), nb::arg("root") = 0, nb::arg("names") = Names())
      .def("allreduce_on_gpu", allreduce_on_gpu, nb::arg("buffers"), nb::arg("op") = "mean", nb::arg("team") = 0,
           nb::arg("names") = Names(), nb::arg("stream") = 0)
      .def("broadcast_on_gpu", broadcast_on_gpu, nb::arg("buffers"), nb::arg("root") = 0, nb::arg("team") = 0,
           nb::arg("names") = Names(), nb::arg("stream") = 0)
      .def("follow_on_gpu", &Session::follow_on_gpu, nb::arg("ticket"), nb::arg("stream") = 0, released)
      .def("await_on_gpu", &Session::await_on_gpu, nb::arg("ticket"), released)
      .def("finish_on_gpu", &Session::finish_on_gpu, nb::arg("ticket"), released)
      .def("gpu_path", &Session::gpu_path, nb::arg("team") = 0)
      .def("wire", &Session::wire, nb::arg("team") = 0)
      .def("broadcast_bytes", broadcast_bytes, nb::arg("data"), nb::arg("root") = 0)
      .def("allgather_bytes", allgather_bytes, nb::arg("data"))
      .def("barrier", [](Session& session) { collective([&] { session.barrier(); }); })
      .def("arena", arena, nb::arg("nbytes"))
      .def("fail", &Session::raise, nb::arg("text"), released)
      .def("finalize", &Session::finalize, nb::arg("blocking") = true, released)
      .def("finalized", &Session::finalized);

  // The same functions for the one session of this process, so that nobody has to carry it.
  m.def("init", init, nb::arg("mpi_library") = "");
  m.def("initialized", &dl::has_joined);
  m.def("finalize", [](bool blocking) { collective([&] { dl::leave(blocking); }); }, nb::arg("blocking") = true);
  m.def("session", &dl::the_session, nb::rv_policy::reference);
  m.def("rank", [] { return dl::the_session().rank(); });
  m.def("size", [] { return dl::the_session().size(); });
  m.def("cooldown", [] { return dl::the_session().settings().cooldown; });
  m.def("local_rank", [] { return dl::the_session().local_rank(); });
  m.def("local_size", [] { return dl::the_session().local_size(); });
  m.def("create_team", [](int team, int threads, int precision) {
    collective([&] { dl::the_session().create_team(team, threads, precision); });
  }, nb::arg("team"), nb::arg("threads"), nb::arg("precision") = 0);
  m.def("allreduce", [](const std::vector<Bare>& buffers, const std::string& op, int team, const Names& names) {
    allreduce(dl::the_session(), buffers, op, team, names);
  }, nb::arg("buffers"), nb::arg("op") = "mean", nb::arg("team") = 0, nb::arg("names") = Names());
  m.def("means", [](nb::handle arrays, int team) { return means(dl::the_session(), arrays, team); }, nb::arg("arrays"),
        nb::arg("team") = 0);
  m.def("start", [](const std::vector<Bare>& buffers, const std::string& op, int team, const Names& names) {
    return start(dl::the_session(), buffers, op, team, names);
  }, nb::arg("buffers"), nb::arg("op") = "mean", nb::arg("team") = 0, nb::arg("names") = Names());
  m.def("wait", [](std::uint64_t ticket) { return wait(dl::the_session(), ticket); }, nb::arg("ticket"));
  m.def("broadcast", [](const std::vector<Bare>& buffers, int root, const Names& names) {
    broadcast(dl::the_session(), buffers, root, names);
  }, nb::arg("buffers"), nb::arg("root") = 0, nb::arg("names") = Names());
  m.def("broadcast_bytes", [](const nb::bytes& data, int root) {
    return broadcast_bytes(dl::the_session(), data, root);
  }, nb::arg("data"), nb::arg("root") = 0);
  m.def("allgather_bytes", [](const nb::bytes& data) { return allgather_bytes(dl::the_session(), data); }, nb::arg("data"));
  m.def("barrier", [] { collective([] { dl::the_session().barrier(); }); });
  m.def("arena", [](std::size_t bytes) { return arena(dl::the_session(), bytes); }, nb::arg("nbytes"));
  m.def("fail", [](const std::string& text) { dl::the_session().raise(text); }, nb::arg("text"), released);
  m.def("abort_job", &dl::abort_job, nb::arg("code"), released);
  m.def("mpi_description", &dl::mpi_description);
  m.def("mpi_allreduce", [](std::uintptr_t address, int count) {
    const nb::gil_scoped_release unlocked;
    dl::mpi_allreduce(reinterpret_cast<float*>(address), count);
  }, nb::arg("address"), nb::arg("count"));
  m.def("kernels", &dl::kernels_in_use);
  m.def("use_kernels", &dl::use_kernels, nb::arg("name"));
  m.def("local_sessions", local_sessions, nb::arg("n"), nb::arg("hosts") = Names(), nb::arg("timeout_s") = 10.0,
        nb::arg("shared_memory") = "threads", nb::arg("stage_kb") = 16, nb::arg("threads") = 1, nb::arg("wire") = "",
        nb::arg("pipeline_chunk_kb") = 256, nb::arg("check") = 0.0, nb::arg("wire_dtype") = "same",
        nb::arg("wire_ranks") = 0, nb::arg("gpu_path") = "auto", nb::arg("cuda_library") = "",
        nb::arg("num_cuda_streams") = 1, nb::rv_policy::reference);
}
