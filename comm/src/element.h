// What the arrays hold and how they are combined.
#pragma once

#include <cstddef>
#include <string>

namespace dl {

enum class Dtype { float64, float32, float16, bfloat16, int8, int16, int32, int64, uint8 };
inline constexpr int dtype_count = 9;

enum class Op { sum, mean, min, max, prod };
inline constexpr int op_count = 5;

// Bytes of one element.
std::size_t width(Dtype dtype);

// NumPy's name of the type ("float32"), and "bfloat16".
const char* name(Dtype dtype);
const char* name(Op op);

// The inverse of name(). Throws CommError which lists the names there are.
Dtype dtype_named(const std::string& name);
Op op_named(const std::string& name);

}  // namespace dl
