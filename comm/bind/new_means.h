// gradients() of NumPy arrays, without Python: for little data the interpreter would cost more than the messages do.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "message.h"

namespace dl {

// What goes from `arrays`, a list or a tuple, into new arrays of the same shapes and types, which are in `made`. The arrays are
// held for as long as this lives; under the GIL. Nothing if they are not all NumPy's own, contiguous, of a type of the core's.
class NewMeans {
 public:
  static std::optional<NewMeans> of(nanobind::handle arrays);

  const std::vector<Buffer>& buffers() const { return buffers_; }
  const std::vector<std::string>& shapes() const { return shapes_; }  // "(64, 3)"
  const nanobind::list& made() const { return made_; }

  NewMeans(NewMeans&& other) noexcept
      : views_(std::exchange(other.views_, {})),
        buffers_(std::move(other.buffers_)),
        shapes_(std::move(other.shapes_)),
        made_(std::move(other.made_)) {}
  NewMeans& operator=(NewMeans&&) = delete;
  ~NewMeans();

 private:
  NewMeans() = default;
  bool add(nanobind::handle array);

  std::vector<Py_buffer> views_;
  std::vector<Buffer> buffers_;
  std::vector<std::string> shapes_;
  nanobind::list made_;
};

}  // namespace dl
