// DL_COMM_CHECK: every reduction is done a second time, another way, and the two results are compared.
//
// The other way is the MPI library's own allreduce, of doubles or 64-bit integers: for sums and means under an MPI that
// any thread may call. Else (min, max, prod; MPI without MPI_THREAD_MULTIPLE) every rank gathers all ranks' values and
// combines them itself. Both cost much more than the reduction: this is for finding a fault, not for training.
#pragma once

#include <string>
#include <vector>

#include "message.h"
#include "transport.h"

namespace dl {

class SecondOpinion {
 public:
  // Keeps the values that are about to be reduced.
  SecondOpinion(const Message& message, Op op);

  // Collective, once the message's arrays hold the results. Throws the same Disagreement on every rank, naming rank,
  // array and element, where a result differs by more than `tolerance` of the array's largest value (the sum over ranks
  // of magnitudes) and by more than rounding explains; integers, min and max have to be equal.
  void compare(Transport& everyone, double tolerance) const;

 private:
  std::string complaint(Transport& everyone, std::size_t array, double tolerance) const;

  const Message& message_;
  Op op_;
  std::vector<std::vector<char>> before_;
};

}  // namespace dl
