// Tells the processor that this is a spin, where it has a word for it.
#pragma once
namespace dl {
inline void pause() {
#if defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // takes about as long as x86's pause; ARM's own yield does nothing on most
#else
  asm volatile("" ::: "memory");
#endif
}
}  // namespace dl
