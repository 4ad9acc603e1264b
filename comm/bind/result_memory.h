// Memory for large results. What a result has left serves the next one of the same size: the system clears memory that it hands
// out anew, page by page, which takes longer than to average as much.
#pragma once

#include <cstddef>

namespace dl {

// `bytes` bytes, which hold anything. Throws std::bad_alloc. From any thread.
char* result_memory(std::size_t bytes);

// Kept at most is what was in use at once before.
void give_result_memory_back(char* memory) noexcept;

}  // namespace dl
