// Functions of a library that is loaded at run time, where it is there: CUDA's driver, NCCL. Nothing is linked and no
// header of theirs is needed, so the same build works without them.
#pragma once

#include <string>
#include <vector>

namespace dl {

// One loaded library; never unloaded. `explain` puts an error code of it into words.
class Loaded {
 public:
  // Loads the first of `names` that there is. Throws CommError that says why the last did not load, and names `variable`.
  // `oldest` is the first release that has all required functions.
  Loaded(const char* what, const std::vector<std::string>& names, const char* variable, const char* oldest);

  void* find(const char* function) const;  // nullptr if it is not there
  const std::string& path() const { return path_; }

  // Throws CommError: "CUDA refused cuMemHostRegister_v2: CUDA_ERROR_OUT_OF_MEMORY (out of memory)".
  [[noreturn]] void refuse(const char* function, const std::string& why) const;
  // Throws CommError: the library lacks the function, and so is too old.
  [[noreturn]] void lack(const char* function) const;

 private:
  std::string what_, variable_, oldest_, path_;
  void* handle_ = nullptr;
};

enum class Need { required, optional };

// A function of `Library` (which has `loaded()` and `explained(code)`) that returns 0 or an error code. A call throws
// CommError for an error.
template <class Library, class... Arguments>
class Function {
 public:
  Function(const Library& library, const char* name, Need need = Need::required) : library_(library), name_(name) {
    at_ = reinterpret_cast<int (*)(Arguments...)>(library.loaded().find(name));
    if (at_ == nullptr && need == Need::required) library.loaded().lack(name);
  }
  explicit operator bool() const { return at_ != nullptr; }
  int code(Arguments... arguments) const { return at_(arguments...); }
  void operator()(Arguments... arguments) const { allowing(0, arguments...); }
  // The same where the code `fine` is no error, either; returns the code.
  int allowing(int fine, Arguments... arguments) const {
    const int error = at_(arguments...);
    if (error != 0 && error != fine) library_.loaded().refuse(name_, library_.explained(error));
    return error;
  }

 private:
  const Library& library_;
  const char* name_;
  int (*at_)(Arguments...);
};

}  // namespace dl
