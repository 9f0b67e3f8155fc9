#pragma once

#include <span>
#include <variant>

#include "server/auth/caller.hpp"
#include "server/routes/handlers.hpp"

namespace cairn::routes {

enum class BodyKind : std::uint8_t {
  none,        // not looked at
  structured,  // collected: JSON or MessagePack
  packed,      // the same, or keys end to end as plain bytes
  streamed,    // plain bytes, which go where `begin` says
};

// What of the server a route is about, and so whether a token that is confined to some caches may
// use it.
enum class Subject : std::uint8_t {
  by_path,  // the cache, lease or transfer that the path names; all of the server where it has none
  filtered,  // nobody's, or the handler itself tells each caller of what it may touch
};

using Handler = std::variant<Handle, HandleOnCache>;

struct Route {
  RoutePattern pattern;
  Role role = Role::admin;  // where tokens are configured
  Subject subject = Subject::by_path;
  BodyKind body = BodyKind::none;
  Handler handle = {};       // not for streamed ones
  Begin begin = nullptr;     // of streamed ones
  bool takes_query = false;  // others refuse any
  bool takes_files = false;  // that come along over the Unix socket
};

// Every route of the server, the hot ones first.
std::span<const Route> table();

}  // namespace cairn::routes
