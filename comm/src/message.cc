#include "message.h"

#include <algorithm>
#include <cstring>

namespace dl {
namespace {

void mix(std::uint64_t& hash, std::uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15u + (hash << 12) + (hash >> 4);
  hash *= 0xff51afd7ed558ccdu;
  hash ^= hash >> 32;
}

void mix(std::uint64_t& hash, const std::string& text) {
  std::uint64_t fnv = 0xcbf29ce484222325u;
  for (const char c : text) fnv = (fnv ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  mix(hash, fnv);
  mix(hash, text.size());
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t end = std::min(text.find('\n', from), text.size());
    lines.push_back(text.substr(from, end - from));
    from = end + 1;
  }
  return lines;
}

std::string arrays(std::size_t n) { return std::to_string(n) + (n == 1 ? " array" : " arrays"); }

}  // namespace

std::uint64_t Message::fingerprint() const {
  std::uint64_t hash = 0x243f6a8885a308d3u;
  mix(hash, call);
  mix(hash, buffers.size());
  for (const Buffer& buffer : buffers) {
    mix(hash, static_cast<std::uint64_t>(buffer.dtype));
    mix(hash, buffer.count);
  }
  for (const std::string& label : labels) mix(hash, label);
  return hash | 1;  // 0 is no fingerprint
}

std::vector<std::string> Message::description() const {
  std::vector<std::string> lines{call};
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const Buffer& buffer = buffers[i];
    std::string label = i < labels.size() ? labels[i] + " " : "";
    std::replace(label.begin(), label.end(), '\n', ' ');
    lines.push_back(label + name(buffer.dtype) + ", " + std::to_string(buffer.count) + " elements");
  }
  return lines;
}

Message Message::in_place() const {
  Message same = *this;
  for (Buffer& buffer : same.buffers) {
    if (buffer.from != nullptr && buffer.count > 0) std::memcpy(buffer.data, buffer.from, buffer.count * width(buffer.dtype));
    buffer.from = nullptr;
  }
  return same;
}

std::string Message::subject() const {
  if (buffers.empty()) return call;
  const std::string first = labels.empty() ? "an array of " + std::to_string(buffers[0].count) + " " + name(buffers[0].dtype)
                                           : labels[0];
  const std::size_t more = buffers.size() - 1;
  return call + " of " + first + (more > 0 ? " and " + std::to_string(more) + " more" : "");
}

std::string first_difference(const std::vector<std::string>& descriptions) {
  const std::vector<std::string> first = lines_of(descriptions[0]);
  for (std::size_t rank = 1; rank < descriptions.size(); ++rank) {
    if (descriptions[rank] == descriptions[0]) continue;
    const std::string other = "rank " + std::to_string(rank);
    const std::vector<std::string> lines = lines_of(descriptions[rank]);
    if (lines[0] != first[0]) return "rank 0 calls " + first[0] + ", " + other + " calls " + lines[0];
    const std::size_t both = std::min(lines.size(), first.size());
    std::size_t at = 1;
    while (at < both && lines[at] == first[at]) ++at;
    std::string counts;
    if (lines.size() != first.size())
      counts = "rank 0 passes " + arrays(first.size() - 1) + ", " + other + " passes " + arrays(lines.size() - 1) + "; ";
    const std::string none = "nothing";
    return counts + "array " + std::to_string(at - 1) + " is " + (at < first.size() ? first[at] : none) + " on rank 0 but " +
           (at < lines.size() ? lines[at] : none) + " on " + other;
  }
  return "";
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += (text.empty() ? "" : "\n") + line;
  return text;
}

}  // namespace dl
