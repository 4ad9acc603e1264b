// Memory that is kept from call to call and grows to the most that was ever needed.
#pragma once

#include <cstddef>
#include <memory>

namespace dl {

class Scratch {
 public:
  virtual ~Scratch() = default;

  // At least `bytes` bytes, which hold anything; what an earlier call returned is gone.
  virtual char* at_least(std::size_t bytes) {
    if (bytes > bytes_) {
      memory_.reset();
      memory_.reset(new char[bytes]);
      bytes_ = bytes;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<char[]> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace dl
