#include "blockmgr/shared/shared_context.hpp"

#include <utility>

#include "base/hash.hpp"
#include "base/hex.hpp"

namespace cairn {
namespace {

std::string prefix_of(const CacheConfig& config, std::uint64_t fingerprint) {
  const std::string& space =
      config.shared->name_space.empty() ? config.name : config.shared->name_space;
  return "cairn:" + space + ":" + to_hex(std::as_bytes(std::span(&fingerprint, 1))) + ":";
}

}  // namespace

SharedContext::SharedContext(std::shared_ptr<Cache> of, SharedStore& in, WaitGroup& work)
    : cache(std::move(of)),
      store(in),
      under_way(work),
      fingerprint(fingerprint_of(cache->config().shape)),
      name_prefix(prefix_of(cache->config(), fingerprint)),
      ttl_ms(cache->config().shared->ttl_ms) {}

std::string SharedContext::name_of(KeyView key) const {
  std::string name = name_prefix;
  append_hex(name, key.bytes());
  return name;
}

std::uint64_t checksum_of(std::span<const iovec> pieces) {
  if (pieces.size() == 1) {
    return hash_bytes({static_cast<const std::byte*>(pieces[0].iov_base), pieces[0].iov_len}, 0);
  }
  PiecewiseHash hash;
  for (const iovec& piece : pieces) {
    hash.add({static_cast<const std::byte*>(piece.iov_base), piece.iov_len});
  }
  return hash.value();
}

}  // namespace cairn
