#pragma once

#include <memory>

#include "base/result.hpp"
#include "transport/store/redis_settings.hpp"
#include "transport/store/remote_store.hpp"

namespace cairn {

// A store in Redis or Valkey: one server, a primary with replicas, or a cluster. It has a separate
// thread and reconnects by itself. It discovers which node has which slots at the start, and again
// when a node reports or shows a change. It pauses requests to a node that fails: for 0.1 s, then
// twice as long each time, up to 5 s. Meanwhile that node's values are unavailable. Errors:
// not_found or malformed if a file of `settings.tls` cannot be used.
Result<std::unique_ptr<RemoteStore>> make_redis_store(RedisSettings settings);

}  // namespace cairn
