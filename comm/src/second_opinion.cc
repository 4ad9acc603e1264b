#include "second_opinion.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <type_traits>

#include "error.h"

namespace dl {
namespace {

constexpr std::size_t step = 32768;  // elements compared at a time
constexpr const char* by_mpi = "MPI's own allreduce";
constexpr const char* by_gathering = "all ranks' values, gathered,";

template <class T>
T at(const char* data, std::size_t i) {
  T value;
  std::memcpy(&value, data + i * sizeof(T), sizeof(T));
  return value;
}

double from_half(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 31) return fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

double from_brain(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  return static_cast<double>(at<float>(reinterpret_cast<const char*>(&wide), 0));
}

bool floating(Dtype dtype) {
  return dtype == Dtype::float64 || dtype == Dtype::float32 || dtype == Dtype::float16 || dtype == Dtype::bfloat16;
}

double real(const char* data, std::size_t i, Dtype dtype) {
  switch (dtype) {
    case Dtype::float64: return at<double>(data, i);
    case Dtype::float32: return static_cast<double>(at<float>(data, i));
    case Dtype::float16: return from_half(at<std::uint16_t>(data, i));
    default: return from_brain(at<std::uint16_t>(data, i));
  }
}

std::int64_t whole(const char* data, std::size_t i, Dtype dtype) {
  switch (dtype) {
    case Dtype::int8: return at<std::int8_t>(data, i);
    case Dtype::int16: return at<std::int16_t>(data, i);
    case Dtype::int32: return at<std::int32_t>(data, i);
    case Dtype::uint8: return at<std::uint8_t>(data, i);
    default: return at<std::int64_t>(data, i);
  }
}

// What of a 64-bit result an element can hold: its low bits.
std::int64_t narrowed(std::int64_t value, Dtype dtype) {
  switch (dtype) {
    case Dtype::int8: return static_cast<std::int8_t>(value);
    case Dtype::int16: return static_cast<std::int16_t>(value);
    case Dtype::int32: return static_cast<std::int32_t>(value);
    case Dtype::uint8: return static_cast<std::uint8_t>(value);
    default: return value;
  }
}

// What a floating-point type cannot express.
struct Limits {
  double epsilon, tiniest, largest;
};
Limits limits(Dtype dtype) {
  switch (dtype) {
    case Dtype::float64: return {0x1p-52, 0x1p-1074, std::numeric_limits<double>::max()};
    case Dtype::float32: return {0x1p-23, 0x1p-149, std::numeric_limits<float>::max()};
    case Dtype::float16: return {0x1p-10, 0x1p-24, 65504.0};
    default: return {0x1p-7, 0x1p-133, std::numeric_limits<float>::max()};
  }
}

// The relative error of adding n numbers one after the other; halves are added in float32.
double rounding(Dtype dtype, int n) {
  const bool half = dtype == Dtype::float16 || dtype == Dtype::bfloat16;
  return (half ? limits(dtype).epsilon : 0.0) + 2.0 * n * limits(half ? Dtype::float32 : dtype).epsilon;
}

std::int64_t combined(std::int64_t a, std::int64_t b, Op op) {
  if (op == Op::min) return std::min(a, b);
  if (op == Op::max) return std::max(a, b);
  const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);  // these wrap
  return static_cast<std::int64_t>(op == Op::prod ? x * y : x + y);
}

double combined(double a, double b, Op op) {
  if (op == Op::prod) return a * b;
  if (op == Op::sum || op == Op::mean) return a + b;
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
  return op == Op::min ? std::min(a, b) : std::max(a, b);
}

template <class Acc>
Acc value(const char* data, std::size_t i, Dtype dtype);
template <>
double value<double>(const char* data, std::size_t i, Dtype dtype) { return real(data, i, dtype); }
template <>
std::int64_t value<std::int64_t>(const char* data, std::size_t i, Dtype dtype) { return whole(data, i, dtype); }

// n elements combined over all ranks, and how large what went in was: 2 n numbers. Says how by `how`.
template <class Acc>
std::vector<Acc> independent(Transport& everyone, const char* mine, std::size_t n, Dtype dtype, Op op, const char*& how) {
  std::vector<Acc> result(2 * n);
  auto put = [&](const char* from, bool first) {
    for (std::size_t i = 0; i < n; ++i) {
      const Acc next = value<Acc>(from, i, dtype);
      const Acc size = std::is_same_v<Acc, double> ? static_cast<Acc>(std::abs(next)) : Acc{0};
      result[i] = first ? next : combined(result[i], next, op);
      result[n + i] = first ? size : combined(result[n + i], size, op);
    }
  };
  put(mine, true);
  how = by_mpi;
  const bool adds = op == Op::sum || op == Op::mean;
  if (adds && everyone.sum(result.data(), result.size(), std::is_same_v<Acc, double> ? Dtype::float64 : Dtype::int64))
    return result;
  how = by_gathering;
  const std::size_t bytes = n * width(dtype);
  std::vector<char> all(bytes * static_cast<std::size_t>(everyone.size()));
  allgather(everyone, mine, bytes, all.data());
  for (std::size_t r = 0; r < static_cast<std::size_t>(everyone.size()); ++r) put(all.data() + r * bytes, r == 0);
  return result;
}

// The element of an array that is worst, and the array's largest value.
struct Worst {
  double difference = 0, size = 0, got = 0, expected = 0;
  std::size_t at = 0;

  void note(double difference_, std::size_t at_, double got_, double expected_) {
    if (difference_ > difference) *this = {difference_, size, got_, expected_, at_};
  }
};

void compare_reals(const std::vector<double>& expected, const char* got, std::size_t first, Dtype dtype, double n,
                   Worst& worst) {
  const Limits limit = limits(dtype);
  const std::size_t half = expected.size() / 2;
  for (std::size_t i = 0; i < half; ++i) {
    const double a = real(got, i, dtype), b = expected[i] / n, size = expected[half + i];
    if (std::isfinite(size)) worst.size = std::max(worst.size, size / n);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    if (!std::isfinite(a) && (!std::isfinite(b) || size > limit.largest)) continue;  // it overflows
    const double difference = std::abs(a - b);
    worst.note(std::isfinite(difference) ? std::max(0.0, difference - limit.tiniest) : HUGE_VAL, first + i, a, b);
  }
}

void compare_wholes(const std::vector<std::int64_t>& expected, const char* got, std::size_t first, Dtype dtype,
                    std::int64_t n, Worst& worst) {
  for (std::size_t i = 0; i < expected.size() / 2; ++i) {
    const std::int64_t a = whole(got, i, dtype), b = narrowed(expected[i] / n, dtype);
    worst.size = std::max(worst.size, std::abs(static_cast<double>(b)));
    if (a != b) worst.note(HUGE_VAL, first + i, static_cast<double>(a), static_cast<double>(b));
  }
}

}  // namespace

SecondOpinion::SecondOpinion(const Message& message, Op op) : message_(message), op_(op) {
  for (const Buffer& one : message.buffers) before_.emplace_back(one.data, one.data + one.count * width(one.dtype));
}

std::string SecondOpinion::complaint(Transport& everyone, std::size_t array, double tolerance) const {
  const Buffer& one = message_.buffers[array];
  const std::size_t wide = width(one.dtype);
  const int n = everyone.size();
  const int divisor = op_ == Op::mean ? n : 1;
  const char* how = by_mpi;
  Worst worst;
  for (std::size_t first = 0; first < one.count; first += step) {
    const std::size_t some = std::min(step, one.count - first);
    const char* const mine = before_[array].data() + first * wide;
    const char* const got = one.data + first * wide;
    if (floating(one.dtype))
      compare_reals(independent<double>(everyone, mine, some, one.dtype, op_, how), got, first, one.dtype, divisor, worst);
    else
      compare_wholes(independent<std::int64_t>(everyone, mine, some, one.dtype, op_, how), got, first, one.dtype, divisor,
                     worst);
  }
  const double allowed = floating(one.dtype) ? std::max(tolerance, rounding(one.dtype, n)) : tolerance;
  if (!(worst.difference > allowed * worst.size)) return "";
  const std::string label = array < message_.labels.size() ? message_.labels[array]
                                                           : "array " + std::to_string(array) + " of " + std::to_string(message_.buffers.size());
  const double apart = std::abs(worst.got - worst.expected);
  char text[400];
  std::snprintf(text, sizeof text, "element %zu is %.9g where %s give%s %.9g; that is off by %.3g of the largest value, and %.3g is allowed",
                worst.at, worst.got, how, how == by_mpi ? "s" : "", worst.expected, worst.size > 0 ? apart / worst.size : apart, allowed);
  return "rank " + std::to_string(everyone.rank()) + " has a wrong result in " + label + ": " + text;
}

void SecondOpinion::compare(Transport& everyone, double tolerance) const {
  std::string mine;
  for (std::size_t i = 0; i < message_.buffers.size(); ++i) {
    const std::string found = complaint(everyone, i, tolerance);
    if (mine.empty()) mine = found;
  }
  for (const std::string& text : allgather(everyone, mine))
    if (!text.empty())
      throw Disagreement("DL_COMM_CHECK: " + text,
                         "what was trained on such gradients is worthless; to find the cause try DL_COMM_SHARED_MEMORY=none, "
                         "another DL_COMM_WIRE, another node");
}

}  // namespace dl
