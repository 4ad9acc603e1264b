#include "settings.h"

#include <cerrno>
#include <cstdlib>
#include <initializer_list>

#include "error.h"

namespace dl {
namespace {

constexpr const char* timed = "timed";

using Look = std::function<const char*(const char*)>;

double number(const Look& look, const char* variable, double fallback, double least, double most, bool whole) {
  const char* text = look(variable);
  if (text == nullptr || *text == '\0') return fallback;
  char* end = nullptr;
  errno = 0;
  const double value = std::strtod(text, &end);
  const bool is_whole = value == static_cast<double>(static_cast<long long>(value));
  if (errno != 0 || *end != '\0' || !(value >= least) || !(value <= most) || (whole && !is_whole)) {
    auto shown = [](double v) { return std::to_string(static_cast<long long>(v)); };
    throw CommError(std::string(variable) + " is '" + text + "'",
                    std::string("it takes a ") + (whole ? "whole " : "") + "number from " + shown(least) + " to " + shown(most));
  }
  return value;
}

std::string choice(const Look& look, const char* variable, const std::string& fallback,
                   std::initializer_list<const char*> choices) {
  const char* text = look(variable);
  if (text == nullptr || *text == '\0') return fallback;
  std::string known;
  for (const char* one : choices) {
    if (std::string(text) == one) return text;
    known += (known.empty() ? "" : ", ") + std::string(one);
  }
  throw CommError(std::string(variable) + " is '" + text + "'", "it takes one of " + known);
}

std::string text(const Look& look, const char* variable) {
  const char* value = look(variable);
  return value == nullptr ? "" : value;
}

}  // namespace

Settings read_settings(const Look& look) {
  Settings s;
  s.timeout_s = number(look, "DL_COMM_TIMEOUT_S", s.timeout_s, 0, 1e9, false);
  if (s.timeout_s == 0) throw CommError("DL_COMM_TIMEOUT_S is 0", "it takes a number of seconds above 0");
  s.default_nthreads = static_cast<int>(number(look, "DL_COMM_DEFAULT_NTHREADS", s.default_nthreads, 1, 64, true));
  if (!text(look, "DL_COMM_DEFAULT_NTHREADS").empty()) s.gpu_nthreads = s.default_nthreads;
  s.pipeline_chunk_kb = static_cast<std::size_t>(number(look, "DL_COMM_PIPELINE_CHUNK_KB", 256, 1, 1 << 20, true));
  if (!text(look, "DL_COMM_PIPELINE_CHUNK_KB").empty()) s.gpu_chunk_kb = s.pipeline_chunk_kb;
  s.num_cuda_streams = static_cast<int>(number(look, "DL_COMM_NUM_CUDA_STREAMS", s.num_cuda_streams, 1, 64, true));
  s.default_prec_level = static_cast<int>(number(look, "DL_COMM_DEFAULT_PREC_LEVEL", s.default_prec_level, 0, 1, true));
  s.stage_kb = static_cast<std::size_t>(number(look, "DL_COMM_STAGE_KB", 0, 4, 1 << 20, true));
  s.shared_memory = choice(look, "DL_COMM_SHARED_MEMORY", s.shared_memory, {"auto", "memfd", "shm", "none"});
  set_wire(s, text(look, "DL_COMM_WIRE"));
  s.wire_dtype = choice(look, "DL_COMM_WIRE_DTYPE", s.wire_dtype, {"same", "float16", "bfloat16"});
  s.wire_ranks = static_cast<int>(number(look, "DL_COMM_WIRE_RANKS", s.wire_ranks, 0, 1 << 20, true));
  s.host = text(look, "DL_COMM_HOST");
  s.mpi_library = text(look, "DL_COMM_MPI_LIBRARY");
  s.gpu_path = choice(look, "DL_COMM_GPU_PATH", s.gpu_path, {"auto", "nccl", "ipc", "mpi", "staged"});
  s.cuda_library = text(look, "DL_COMM_CUDA_LIBRARY");
  s.nccl_library = text(look, "DL_COMM_NCCL_LIBRARY");
  s.check = number(look, "DL_COMM_CHECK", s.check, 0, 1, false);
  s.cooldown = choice(look, "DL_COMM_COOLDOWN", s.cooldown, {"step", "last"});
  return s;
}

void set_wire(Settings& settings, const std::string& text) {
  settings.wire_timed = text == timed;
  settings.wire = wire_table(settings.wire_timed ? "" : text);
}

std::vector<std::pair<std::string, std::string>> shared_settings(const Settings& settings) {
  return {{"DL_COMM_DEFAULT_NTHREADS", std::to_string(settings.default_nthreads)},
          {"DL_COMM_DEFAULT_PREC_LEVEL", std::to_string(settings.default_prec_level)},
          {"DL_COMM_PIPELINE_CHUNK_KB", std::to_string(settings.pipeline_chunk_kb)},
          {"DL_COMM_NUM_CUDA_STREAMS", std::to_string(settings.num_cuda_streams)},
          {"DL_COMM_GPU_PATH", settings.gpu_path},
          {"DL_COMM_STAGE_KB", std::to_string(settings.stage_kb)},
          {"DL_COMM_WIRE", settings.wire_timed ? timed : shown(settings.wire)},
          {"DL_COMM_WIRE_DTYPE", settings.wire_dtype},
          {"DL_COMM_WIRE_RANKS", std::to_string(settings.wire_ranks)},
          {"DL_COMM_CHECK", settings.check > 0 ? "on" : "0"},
          {"DL_COMM_COOLDOWN", settings.cooldown}};
}

}  // namespace dl
