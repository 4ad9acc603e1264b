#include "result_memory.h"

#include <sys/mman.h>

#include <map>
#include <mutex>
#include <new>

namespace dl {
namespace {

// Never destroyed: arrays may outlive what ends with the process.
struct Results {
  std::mutex guard;
  std::map<char*, std::size_t> used;
  std::multimap<std::size_t, char*> kept;  // by size
  std::size_t used_bytes = 0, kept_bytes = 0;
};
Results& results() {
  static Results& all = *new Results;
  return all;
}

void drop_one(Results& all) {
  const auto smallest = all.kept.begin();
  munmap(smallest->second, smallest->first);
  all.kept_bytes -= smallest->first;
  all.kept.erase(smallest);
}

char* mapped(std::size_t bytes) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  madvise(at, bytes, MADV_HUGEPAGE);
  return static_cast<char*>(at);
}

}  // namespace

char* result_memory(std::size_t bytes) {
  constexpr std::size_t page = 4096;
  bytes = (bytes + page - 1) / page * page;
  Results& all = results();
  const std::lock_guard<std::mutex> lock(all.guard);
  const auto found = all.kept.find(bytes);
  char* memory = nullptr;
  if (found != all.kept.end()) {
    memory = found->second;
    all.kept_bytes -= bytes;
    all.kept.erase(found);
  } else {
    while (!all.kept.empty()) drop_one(all);  // the sizes have changed
    memory = mapped(bytes);
  }
  all.used[memory] = bytes;
  all.used_bytes += bytes;
  return memory;
}

void give_result_memory_back(char* memory) noexcept {
  Results& all = results();
  const std::lock_guard<std::mutex> lock(all.guard);
  const auto found = all.used.find(memory);
  if (found == all.used.end()) return;
  all.kept.emplace(found->second, memory);
  all.kept_bytes += found->second;
  all.used_bytes -= found->second;
  all.used.erase(found);
}

}  // namespace dl
