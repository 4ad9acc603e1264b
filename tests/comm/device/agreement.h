// Whether two declarations of a function agree: as many arguments, each as wide, and pointers where pointers are.
#pragma once

#include <type_traits>
#include <utility>

#include "device/loaded.h"

template <class A, class B>
constexpr bool alike = sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;
template <class Library, class... A, class Result, class... B>
constexpr bool same(const dl::Function<Library, A...>*, Result (*)(B...)) {
  if constexpr (sizeof...(A) != sizeof...(B)) return false;
  else return (alike<A, B> && ...);
}
template <class Library, auto member>
using at = std::remove_reference_t<decltype(std::declval<Library&>().*member)>;
#define AGREE(library, mine, theirs) \
  static_assert(same(static_cast<at<library, &library::mine>*>(nullptr), decltype(&theirs)(nullptr)))
