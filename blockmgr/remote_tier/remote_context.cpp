#include "blockmgr/remote_tier/remote_context.hpp"

#include <utility>

#include "base/hex.hpp"

namespace cairn {
namespace {

// Values and holders have different prefixes, because their data differs.
std::string prefix_of(const CacheConfig& config, std::uint64_t fingerprint) {
  const bool is_of_values = config.shared->placement == RemoteTierConfig::Placement::values;
  return (is_of_values ? "cairn:" : "cairn-holders:") + shared_namespace(config) + ":" +
         to_hex(std::as_bytes(std::span(&fingerprint, 1))) + ":";
}

}  // namespace

const std::string& shared_namespace(const CacheConfig& config) {
  return config.shared->name_space.empty() ? config.name : config.shared->name_space;
}

RemoteContext::RemoteContext(std::shared_ptr<Cache> of, const Beyond& beyond,
                             const RemoteEvents& remote_events)
    : cache(std::move(of)),
      store(beyond.store),
      peers(beyond.peers),
      own_address(beyond.own_address),
      under_way(beyond.under_way),
      executor(beyond.executor),
      name_space(shared_namespace(cache->config())),
      fingerprint(fingerprint_of(cache->config().shape)),
      name_prefix(prefix_of(cache->config(), fingerprint)),
      ttl_ms(cache->config().shared->ttl_ms),
      events(remote_events) {}

std::string RemoteContext::name_of(KeyView key) const {
  std::string name = name_prefix;
  append_hex(name, key.bytes());
  return name;
}

}  // namespace cairn
