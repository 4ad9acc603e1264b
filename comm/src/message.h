// What one collective call is about: arrays, and the words by which ranks check that they mean the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "element.h"

namespace dl {

struct Buffer {
  char* data;
  std::size_t count;  // elements
  Dtype dtype;
  const char* from = nullptr;  // where a reduction reads its elements, to write to `data`; null: they are in `data`

  const char* source() const { return from != nullptr ? from : data; }
};

struct Message {
  std::string call;  // "gradients (mean)", "broadcast from rank 0", ...
  std::vector<Buffer> buffers;
  std::vector<std::string> labels;  // "weight (64, 3)"; may be fewer than buffers

  // Equal on two ranks if and only if they mean the same call: same kind, number, order, types, lengths and labels.
  std::uint64_t fingerprint() const;

  // One line for the call, and one for each array: what fingerprint() is the hash of.
  std::vector<std::string> description() const;

  // The same with the elements of every buffer in its `data`, where they are brought.
  Message in_place() const;

  // "conv1.weight (64, 3, 7, 7)", or with more than one array "... and 160 more"; for messages.
  std::string subject() const;
};

// The sentence that says where the descriptions of the ranks first differ, or "" if they do not. Every rank computes the
// same sentence.
std::string first_difference(const std::vector<std::string>& descriptions);

// One line a call and an array, as sent between ranks.
std::string joined(const std::vector<std::string>& lines);

}  // namespace dl
