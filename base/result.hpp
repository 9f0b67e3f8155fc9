#pragma once

#include <boost/system/result.hpp>
#include <utility>

#include "base/error.hpp"

namespace cairn {

// A value or an Error. Reading the value of a failed Result aborts.
template <class T = void>
class [[nodiscard]] Result : public boost::system::result<T, Error> {
 public:
  using boost::system::result<T, Error>::result;
};

[[noreturn]] void throw_exception_from_error(const Error& error,
                                             const boost::source_location& where);

}  // namespace cairn

// Evaluates a Result expression; on failure returns its Error from the enclosing function.
#define CAIRN_TRY(expression)                            \
  do {                                                   \
    if (auto cairn_tried = (expression); !cairn_tried) { \
      return std::move(cairn_tried).error();             \
    }                                                    \
  } while (false)
