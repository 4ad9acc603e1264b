// Tells the compiler that this is a spin; the processor has no common word for it.
#pragma once
namespace dl {
inline void pause() { asm volatile("" ::: "memory"); }
}  // namespace dl
