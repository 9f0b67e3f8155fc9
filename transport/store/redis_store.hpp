#pragma once

#include <memory>

#include "base/result.hpp"
#include "transport/store/redis_settings.hpp"
#include "transport/store/shared_store.hpp"

namespace cairn {

// Values in a Redis or Valkey: one server, the primary of some, or a cluster. It has a thread of
// its own, connects when it is made and again whenever it has to, and asks which node has what when
// it begins and whenever a node says or shows that this has changed. A node that fails is left
// alone for 0.1 s, then for twice as long each time, 5 s at most; what it has is meanwhile
// unavailable. unavailable where a file of `settings.tls` cannot be used.
Result<std::unique_ptr<SharedStore>> make_redis_store(RedisSettings settings);

}  // namespace cairn
