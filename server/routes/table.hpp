#pragma once

#include <span>
#include <variant>

#include "server/auth/caller.hpp"
#include "server/routes/handlers.hpp"

namespace cairn::routes {

enum class BodyKind : std::uint8_t {
  none,        // ignored
  structured,  // collected: JSON or MessagePack
  packed,      // the same, or keys as plain bytes, end to end
  streamed,    // plain bytes, to where `begin` says
};

// The scope of a route: decides whether a token that is confined to some caches may use it.
enum class Subject : std::uint8_t {
  by_path,   // the path's cache, lease or transfer; the whole server if it names none
  filtered,  // public, or the handler shows each caller only what it may touch
};

using Handler = std::variant<Handle, HandleOnCache>;

struct Route {
  RoutePattern pattern;
  Role role = Role::admin;  // needed if tokens are configured
  Subject subject = Subject::by_path;
  BodyKind body = BodyKind::none;
  Handler handle = {};       // not of streamed routes
  Begin begin = nullptr;     // of streamed routes
  bool takes_query = false;  // other routes refuse a query
  bool takes_files = false;  // sent over the Unix socket
};

// Every route of the server, the hot ones first.
std::span<const Route> table();

}  // namespace cairn::routes
