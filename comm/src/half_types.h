// The half types as the kernels see them. In an anonymous namespace, as all of the kernels: see kernels_body.h.
#pragma once

#include <stdint.h>

namespace dl {
namespace {

struct Half {  // IEEE 754 binary16
  uint16_t bits;
};
struct Brain {  // bfloat16: the upper half of a float32
  uint16_t bits;
};

}  // namespace
}  // namespace dl
