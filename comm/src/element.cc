#include "element.h"

#include "error.h"

namespace dl {
namespace {

struct Type {
  const char* name;
  std::size_t width;
};
constexpr Type types[dtype_count] = {{"float64", 8}, {"float32", 4}, {"float16", 2}, {"bfloat16", 2}, {"int8", 1},
                                     {"int16", 2},   {"int32", 4},   {"int64", 8},   {"uint8", 1}};
constexpr const char* ops[op_count] = {"sum", "mean", "min", "max", "prod"};

}  // namespace

std::size_t width(Dtype dtype) { return types[static_cast<int>(dtype)].width; }
const char* name(Dtype dtype) { return types[static_cast<int>(dtype)].name; }
const char* name(Op op) { return ops[static_cast<int>(op)]; }

Dtype dtype_named(const std::string& name) {
  std::string known;
  for (int i = 0; i < dtype_count; ++i) {
    if (name == types[i].name) return static_cast<Dtype>(i);
    known += std::string(i ? ", " : "") + types[i].name;
  }
  throw CommError("arrays of type " + name + " cannot be reduced", "the types are " + known);
}

Op op_named(const std::string& name) {
  for (int i = 0; i < op_count; ++i)
    if (name == ops[i]) return static_cast<Op>(i);
  throw CommError("no operation is called '" + name + "'", "the operations are sum, mean, min, max and prod");
}

}  // namespace dl
