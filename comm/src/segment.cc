#include "segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "error.h"

namespace dl {
namespace {

// What rank 0 tells the others. The nonce, written into the segment itself, proves that they opened the same one.
struct Ticket {
  int pid = 0;
  int fd = -1;
  std::uint64_t nonce = 0;
  char name[64] = "";  // in /dev/shm; empty: a memfd
};

std::uint64_t fresh_nonce() {
  static std::atomic<std::uint64_t> count{0};
  const auto now = static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  return (now ^ (static_cast<std::uint64_t>(getpid()) << 40)) * 0x9e3779b97f4a7c15u + ++count;
}

void* map(int fd, std::size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return nullptr;
  madvise(base, bytes, MADV_HUGEPAGE);  // where the system gives them to shared memory; else refused, which is no harm
  return base;
}

// A file in /dev/shm is limited by its mount: reserve it all now, or the first touch beyond ends in SIGBUS.
int create(const std::string& how, std::size_t bytes, Ticket& ticket, std::string& why) {
  int fd = -1, failed = 0;
  if (how == "memfd") {
    fd = memfd_create("dl_comm", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) failed = errno;
  } else {
    const std::string name = "/dl_comm." + std::to_string(getpid()) + "." + std::to_string(ticket.nonce);
    fd = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0) failed = errno;
    else failed = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
    if (fd >= 0) std::strncpy(ticket.name, name.c_str(), sizeof ticket.name - 1);
  }
  if (failed != 0) {
    why += (why.empty() ? "" : "; ") + how + ": " + std::strerror(failed) + " for " + std::to_string(bytes >> 20) + " MiB";
    if (ticket.name[0] != '\0') shm_unlink(ticket.name);
    if (fd >= 0) close(fd);
    return -1;
  }
  return fd;
}

int attach(const Ticket& ticket) {
  if (ticket.name[0] != '\0') return shm_open(ticket.name, O_RDWR, 0);
  const std::string path = "/proc/" + std::to_string(ticket.pid) + "/fd/" + std::to_string(ticket.fd);
  return open(path.c_str(), O_RDWR | O_CLOEXEC);
}

std::unique_ptr<Segment> share_by(Transport& node, std::size_t bytes, const std::string& how, std::string& why) {
  Ticket ticket;
  void* base = nullptr;
  int fd = -1;
  if (node.rank() == 0) {
    ticket.pid = getpid();
    ticket.nonce = fresh_nonce();
    fd = create(how, bytes, ticket, why);
    ticket.fd = fd;
    if (fd >= 0) base = map(fd, bytes);
    if (base != nullptr) std::memcpy(base, &ticket.nonce, sizeof ticket.nonce);
  }
  broadcast(node, &ticket, sizeof ticket, 0);
  if (node.rank() != 0 && ticket.fd >= 0) {
    fd = attach(ticket);
    if (fd >= 0) base = map(fd, bytes);
    if (base == nullptr) why += (why.empty() ? "" : "; ") + how + ": rank " + std::to_string(node.world_rank(node.rank())) + " cannot attach";
  }
  char mine = base != nullptr && std::memcmp(base, &ticket.nonce, sizeof ticket.nonce) == 0 ? 1 : 0;
  std::string all(static_cast<std::size_t>(node.size()), '\0');
  allgather(node, &mine, 1, all.data());
  if (fd >= 0) close(fd);
  if (node.rank() == 0 && ticket.name[0] != '\0') shm_unlink(ticket.name);
  auto segment = base == nullptr ? nullptr : std::make_unique<Segment>(base, bytes);
  if (std::count(all.begin(), all.end(), '\1') != node.size()) {
    std::string reasons;
    for (const std::string& one : allgather(node, why)) reasons = std::max(reasons, one);  // any that is not empty
    why = reasons;
    return nullptr;
  }
  barrier(node);  // everyone has compared the nonce before it is wiped
  if (node.rank() == 0) std::memset(segment->base(), 0, sizeof ticket.nonce);
  barrier(node);
  return segment;
}

std::shared_ptr<Segment> alone(std::size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED)
    throw CommError("no memory: " + std::to_string(bytes >> 20) + " MiB were refused (" + std::strerror(errno) + ")");
  madvise(base, bytes, MADV_HUGEPAGE);
  return std::make_shared<Segment>(base, bytes);
}

std::shared_ptr<Segment> share_among_threads(Transport& node, std::size_t bytes) {
  std::shared_ptr<Segment> made;
  if (node.rank() == 0) made = alone(bytes);
  const std::shared_ptr<Segment>* source = &made;
  broadcast(node, &source, sizeof source, 0);
  if (node.rank() != 0) made = *source;
  barrier(node);  // `source` points into rank 0's frame
  return made;
}

}  // namespace

Segment::~Segment() { munmap(base_, bytes_); }

std::shared_ptr<Segment> share(Transport& node, std::size_t bytes, const std::string& how, std::string& why) {
  if (node.size() == 1) return alone(bytes);
  if (how == "threads") return share_among_threads(node, bytes);
  for (const char* one : {"memfd", "shm"}) {
    if (how != "auto" && how != one) continue;
    if (auto segment = share_by(node, bytes, one, why)) return segment;
  }
  if (how == "none") why = "DL_COMM_SHARED_MEMORY is none";
  return nullptr;
}

}  // namespace dl
