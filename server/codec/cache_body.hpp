#pragma once

#include <string>

#include "blockmgr/cache/cache.hpp"
#include "server/codec/document.hpp"

// A cache's configuration and status as JSON.
namespace cairn {

// The default alignment of block strides: one page, so that a block of any tier can be moved by
// direct I/O and mapped alone.
inline constexpr std::uint64_t kDefaultAlignment = 4096;

class Fields;
// Reads {"elevated": 0.8, "warning": 0.9, "critical": 0.97, "reactions": {"critical": {"kind":
// "shrink", "target_use": 0.9}}}, all optional. The reaction `callback` writes a log line. A pool's
// reactions have no target. `empty_cache` is for the device tier only.
enum class PressureOf : std::uint8_t { device_tier, tier, pool };
inline PressureOf pressure_of(Tier tier) {
  return tier == Tier::device ? PressureOf::device_tier : PressureOf::tier;
}
void read_pressure(Fields& fields, PressureOf of, PressureConfig& out);
// Reads the body of PUT /v1/caches/{cache}. `name` is not part of it.
CacheConfig read_cache_fields(Fields& fields, std::string name);
Result<CacheConfig> read_cache_body(const json& body, const std::string& name);

// Reads the body of PATCH /v1/caches/{cache}.
CacheChange read_cache_change(Fields& fields);

// The body that creates the same cache, with every field.
ordered_json cache_config_body(const CacheConfig& config);

// The configuration with its defaults filled in, block_bytes, and the reserved memory per tier.
ordered_json cache_shape(const Cache& cache);
// cache_shape(), and per tier the block counts by state, hits and pressure.
ordered_json cache_status(const Cache& cache);

}  // namespace cairn
