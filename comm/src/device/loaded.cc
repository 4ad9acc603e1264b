#include "device/loaded.h"

#include <dlfcn.h>

#include "error.h"

namespace dl {

Loaded::Loaded(const char* what, const std::vector<std::string>& names, const char* variable, const char* oldest)
    : what_(what), variable_(variable), oldest_(oldest) {
  std::string why;
  for (const std::string& name : names) {
    handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      path_ = name;
      return;
    }
    const char* said = dlerror();
    why = said == nullptr ? name + " does not load" : said;
  }
  throw CommError(what_ + " is not here: " + why, "name the library by " + variable_ + "=/path/to/it");
}

void* Loaded::find(const char* function) const { return dlsym(handle_, function); }

void Loaded::refuse(const char* function, const std::string& why) const {
  throw CommError(what_ + " refused " + function + ": " + why);
}

void Loaded::lack(const char* function) const {
  throw CommError(what_ + " is too old: " + path_ + " has no " + function,
                  oldest_ + " or later is needed; " + variable_ + " names another library");
}

}  // namespace dl
