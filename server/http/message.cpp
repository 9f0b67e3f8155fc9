#include "server/http/message.hpp"

#include "base/assert.hpp"

namespace cairn::http {

std::string_view to_string(Method method) {
  switch (method) {
    case Method::get:
      return "GET";
    case Method::head:
      return "HEAD";
    case Method::put:
      return "PUT";
    case Method::post:
      return "POST";
    case Method::patch:
      return "PATCH";
    case Method::delete_:
      return "DELETE";
    case Method::options:
      return "OPTIONS";
    case Method::other:
      return "OTHER";
  }
  invariant_broken("method is an enumerator", "a request would be routed by a wrong method");
}

}  // namespace cairn::http
