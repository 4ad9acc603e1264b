// The calls that this process is in, for somebody who asks while it is: `dlrun launch`, when a job makes no progress.
#pragma once

#include <cstdint>

namespace dl {

struct Message;

// Says for as long as it lives that `message` is being exchanged as call `call` of team `team`. Costs some nanoseconds.
// The message must outlive it. One at a time for each team; of two teams whose numbers are equal modulo 8 the first.
class Now {
 public:
  Now(const Message& message, int team, std::uint64_t call) noexcept;
  ~Now();
  Now(const Now&) = delete;
  Now& operator=(const Now&) = delete;

 private:
  struct Place* place_;
};

// From now on, `signal` makes this process write into the file `path`, over what is there, the calls that it is in, one a
// line, and how many it has begun ("12 calls begun": who is in none may move on all the same); then the handler that the
// signal had before is called.
void tell_calls_on(int signal, const char* path);

}  // namespace dl
