// Writing past the caches, line by line. Where this is included, line_bytes and stream_line() are known.

namespace dl {
namespace {

void stream_bytes(void* to, const void* from, size_t bytes) {
  auto* out = static_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  size_t head = (line_bytes - reinterpret_cast<uintptr_t>(out) % line_bytes) % line_bytes;
  if (head > bytes) head = bytes;
  memcpy(out, in, head);
  size_t i = head;
  for (; i + line_bytes <= bytes; i += line_bytes)
    stream_line(out + i, in + i);
  memcpy(out + i, in + i, bytes - i);
}

// Streamed bytes become visible to other ranks in order with what follows.
void stream_end() { _mm_sfence(); }

}  // namespace
}  // namespace dl
