// The one error of dl_comm: what is so, with the numbers, and what to do about it.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace dl {

class CommError : public std::runtime_error {
 public:
  explicit CommError(const std::string& message, std::string hint = "")
      : std::runtime_error(message), hint_(std::move(hint)) {}
  const std::string& hint() const { return hint_; }

 private:
  std::string hint_;
};

// The ranks called with different arguments, or were found to have wrong results. Every rank throws it at the same point, so all can go on.
class Disagreement : public CommError {
 public:
  using CommError::CommError;
};

// "rank 3 has not answered rank 1 within 2.5 s".
CommError no_answer(int silent, int waiting, double seconds);

}  // namespace dl
