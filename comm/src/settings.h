// Every DL_COMM_* variable, read once, with its default and its meaning. Nothing else reads them.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "wire_table.h"

namespace dl {

struct Settings {
  double timeout_s = 300;                // DL_COMM_TIMEOUT_S: how long a rank waits for another before it gives up
  int default_nthreads = 4;              // DL_COMM_DEFAULT_NTHREADS: threads of a team not created explicitly
  int gpu_nthreads = 2;                  // the same variable: threads of any team that serve a GPU, at most
  std::size_t pipeline_chunk_kb = 256;   // DL_COMM_PIPELINE_CHUNK_KB: chunk between node and wire
  std::size_t gpu_chunk_kb = 4096;       // the same variable: chunk between host and GPU
  int num_cuda_streams = 1;              // DL_COMM_NUM_CUDA_STREAMS: CUDA streams per thread for these transfers
  int default_prec_level = 0;            // DL_COMM_DEFAULT_PREC_LEVEL: 0 sums floats as they are (halves in float32), 1 in double
  std::size_t stage_kb = 0;              // DL_COMM_STAGE_KB: chunk in which private arrays pass through shared memory; 0: by layout
  std::string shared_memory = "auto";    // DL_COMM_SHARED_MEMORY: auto, memfd, shm (names in /dev/shm), none
  std::vector<WireRule> wire;            // DL_COMM_WIRE: which allreduce between nodes, "65536:doubling,*:ring" (wire_table.h)
  bool wire_timed = false;               // DL_COMM_WIRE=timed: the fastest of all, by timing (wire_choice.h)
  std::string wire_dtype = "same";       // DL_COMM_WIRE_DTYPE: what float32 sums are written as between nodes: same, float16, bfloat16
  int wire_ranks = 0;                    // DL_COMM_WIRE_RANKS: how many ranks of a node talk to other nodes; 0: all
  std::string host;                      // DL_COMM_HOST: the name of this rank's node; empty: host name and boot id
  std::string mpi_library;               // DL_COMM_MPI_LIBRARY: the libmpi to load
  std::string gpu_path = "auto";         // DL_COMM_GPU_PATH: how arrays on GPUs go: auto, nccl (over all ranks), ipc (within nodes), mpi (between nodes), staged (through the host)
  std::string cuda_library;              // DL_COMM_CUDA_LIBRARY: CUDA's driver; empty: libcuda.so.1
  std::string nccl_library;              // DL_COMM_NCCL_LIBRARY: NCCL; empty: the framework's, or the system's
  std::string prefix;                    // the Python environment, in which libraries are looked for; no variable
  double check = 0;                      // DL_COMM_CHECK: compare every reduction with another way's, within this; 0: do not (second_opinion.h)
  std::string cooldown = "step";         // DL_COMM_COOLDOWN: what ksteps < 0 means: "step": block from step |ksteps|; "last": block the last |ksteps|
};

// Reads the settings through `look` (getenv's shape). Throws CommError that names the variable and the bad value.
Settings read_settings(const std::function<const char*(const char*)>& look);

// What DL_COMM_WIRE says. Throws CommError.
void set_wire(Settings& settings, const std::string& text);

// The settings that decide which messages are sent, and so have to be the same on all ranks: names and values.
std::vector<std::pair<std::string, std::string>> shared_settings(const Settings& settings);

}  // namespace dl
