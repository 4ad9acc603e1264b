#include "launcher.h"

#include <cstdlib>

namespace dl {

const char* name(MpiFamily family) {
  switch (family) {
    case MpiFamily::mpich: return "MPICH";
    case MpiFamily::openmpi: return "Open MPI";
    case MpiFamily::standard_abi: return "MPI standard ABI";
  }
  return "";
}

Launcher find_launcher(const std::function<const char*(const char*)>& look) {
  auto number = [&](const char* variable) {
    const char* text = look(variable);
    return text == nullptr ? 0 : std::atoi(text);
  };
  Launcher found;
  if (look("OMPI_COMM_WORLD_SIZE") != nullptr && look("DLRUN_AS_OPENMPI") == nullptr) {
    found = {"Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", MpiFamily::openmpi, number("OMPI_COMM_WORLD_SIZE")};
  } else if (look("PALS_RANKID") != nullptr) {
    found = {"PALS mpiexec", "PALS_RANKID", MpiFamily::mpich, number("PMI_SIZE")};
  } else if (look("PMI_RANK") != nullptr || look("PMI_SIZE") != nullptr || look("PMI_ID") != nullptr) {
    const bool slurm = look("SLURM_MPI_TYPE") != nullptr && look("HYDI_CONTROL_FD") == nullptr;
    found = {slurm ? "srun --mpi=pmi2" : "MPICH's mpiexec", "PMI_RANK", MpiFamily::mpich, number("PMI_SIZE")};
  } else if (look("PMIX_RANK") != nullptr) {
    const bool slurm = look("SLURM_STEP_NUM_TASKS") != nullptr;
    found = {slurm ? "srun --mpi=pmix" : "a PMIx launcher", "PMIX_RANK", MpiFamily::openmpi,
             slurm ? number("SLURM_STEP_NUM_TASKS") : 0};
  } else if (look("ALPS_APP_PE") != nullptr) {
    found = {"aprun", "ALPS_APP_PE", MpiFamily::mpich, 0};
  } else if (look("SLURM_PROCID") != nullptr && number("SLURM_STEP_NUM_TASKS") > 1) {
    found = {"srun without PMI", "SLURM_PROCID", std::nullopt, number("SLURM_STEP_NUM_TASKS")};
  }
  if (const int asked = number("DLRUN_SIZE"); asked > 0) {
    found.size = asked;
    if (asked > 1 && found.none()) {
      found.name = "dlrun launch";
      found.sign = "DLRUN_SIZE";
    }
  }
  return found;
}

}  // namespace dl
