// Tells the processor that this is a spin.
#pragma once
namespace dl {
inline void pause() { __builtin_ia32_pause(); }
}  // namespace dl
