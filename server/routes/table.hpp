#pragma once

#include <span>

#include "server/routes/handlers.hpp"

namespace cairn::routes {

enum class BodyKind : std::uint8_t {
  none,        // not looked at
  structured,  // collected: JSON, MessagePack or packed keys
  streamed,    // goes where `begin` says
};

struct Route {
  RoutePattern pattern;
  BodyKind body = BodyKind::none;
  Handle handle = nullptr;  // not for streamed ones
  Begin begin = nullptr;    // of streamed ones
};

// Every route of the server, the hot ones first.
std::span<const Route> table();

}  // namespace cairn::routes
