#include "new_means.h"

#include <nanobind/ndarray.h>

#include <cstring>

#include "result_memory.h"

namespace nb = nanobind;

namespace dl {
namespace {

constexpr std::size_t large = 1u << 20;  // bytes from which memory that the system has to clear first costs more than a mean

struct Known {
  char code;  // of Python's struct module, in this machine's size and order
  Dtype dtype;
  nb::dlpack::dtype same;
};
nb::dlpack::dtype is(nb::dlpack::dtype_code code, int bits) {
  return {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits), 1};
}
const Known known[] = {{'f', Dtype::float32, is(nb::dlpack::dtype_code::Float, 32)},
                       {'d', Dtype::float64, is(nb::dlpack::dtype_code::Float, 64)},
                       {'e', Dtype::float16, is(nb::dlpack::dtype_code::Float, 16)},
                       {'b', Dtype::int8, is(nb::dlpack::dtype_code::Int, 8)},
                       {'h', Dtype::int16, is(nb::dlpack::dtype_code::Int, 16)},
                       {'i', Dtype::int32, is(nb::dlpack::dtype_code::Int, 32)},
                       {'l', Dtype::int64, is(nb::dlpack::dtype_code::Int, 64)},
                       {'B', Dtype::uint8, is(nb::dlpack::dtype_code::UInt, 8)}};
static_assert(sizeof(long) == 8, "where it is not, the interpreter's way is taken");

const Known* known_as(const char* format) {
  if (format != nullptr && format[0] != '\0' && format[1] == '\0')
    for (const Known& one : known)
      if (one.code == format[0]) return &one;
  return nullptr;
}

// NumPy's, kept for as long as the process lives.
struct Numpy {
  PyObject* array;
  PyObject* empty_like;
};
const Numpy& numpy() {
  static const Numpy found = [] {
    const nb::module_ module = nb::module_::import_("numpy");
    return Numpy{nb::object(module.attr("ndarray")).release().ptr(), nb::object(module.attr("empty_like")).release().ptr()};
  }();
  return found;
}

std::string shown(const Py_buffer& view) {  // as Python shows a tuple
  std::string text = "(";
  for (int i = 0; i < view.ndim; ++i) text += (i > 0 ? ", " : "") + std::to_string(view.shape[i]);
  return text + (view.ndim == 1 ? ",)" : ")");
}

// A new array of the view's shape in memory that a result was in before.
nb::object in_kept_memory(const Py_buffer& view, const Known& kind, char*& data) {
  data = result_memory(static_cast<std::size_t>(view.len));
  const nb::capsule owner(data, [](void* memory) noexcept { give_result_memory_back(static_cast<char*>(memory)); });
  std::vector<std::size_t> shape(view.shape, view.shape + view.ndim);
  return nb::cast(nb::ndarray<nb::numpy>(data, shape.size(), shape.data(), owner, nullptr, kind.same));
}

}  // namespace

NewMeans::~NewMeans() {
  for (Py_buffer& view : views_) PyBuffer_Release(&view);
}

std::optional<NewMeans> NewMeans::of(nb::handle arrays) {
  NewMeans means;
  if (!PyList_CheckExact(arrays.ptr()) && !PyTuple_CheckExact(arrays.ptr())) return std::nullopt;
  const Py_ssize_t n = PySequence_Size(arrays.ptr());
  for (Py_ssize_t i = 0; i < n && i < PySequence_Size(arrays.ptr()); ++i)
    if (!means.add(nb::steal(PySequence_GetItem(arrays.ptr(), i)))) return std::nullopt;
  return means;
}

bool NewMeans::add(nb::handle array) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(array.ptr())) != numpy().array) return false;
  Py_buffer view;
  if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    return false;
  }
  views_.push_back(view);
  const Known* const kind = known_as(view.format);
  if (kind == nullptr) return false;
  nb::object own;
  char* data = nullptr;
  if (static_cast<std::size_t>(view.len) >= large) {
    own = in_kept_memory(view, *kind, data);
  } else {
    own = nb::steal(PyObject_CallFunctionObjArgs(numpy().empty_like, array.ptr(), nullptr));
    Py_buffer there;
    if (!own.is_valid() || PyObject_GetBuffer(own.ptr(), &there, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) != 0) nb::raise_python_error();
    data = static_cast<char*>(there.buf);  // the array holds it
    PyBuffer_Release(&there);
  }
  buffers_.push_back({data, static_cast<std::size_t>(view.len / view.itemsize), kind->dtype, static_cast<const char*>(view.buf)});
  shapes_.push_back(shown(view));
  made_.append(own);
  return true;
}

}  // namespace dl
