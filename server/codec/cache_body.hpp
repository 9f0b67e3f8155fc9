#pragma once

#include <string>

#include "blockmgr/cache/cache.hpp"
#include "server/codec/document.hpp"

// A cache's configuration in the contract's words, and what is told about a cache.
namespace cairn {

// Block strides are padded to this unless the body says otherwise: a page, so that a block of any
// tier can be moved by direct I/O and mapped by itself.
inline constexpr std::uint64_t kDefaultAlignment = 4096;

class Fields;
// {"elevated": 0.8, "warning": 0.9, "critical": 0.97, "reactions": {"critical": {"kind": "shrink",
// "target_use": 0.9}}}, all optional. `callback` writes a line to the log.
void read_pressure(Fields& fields, PressureConfig& out);
// The members of the body of PUT /v1/caches/{cache}, into all but the name.
CacheConfig read_cache_fields(Fields& fields, std::string name);
Result<CacheConfig> read_cache_body(const json& body, const std::string& name);

// The body of PATCH /v1/caches/{cache}.
CacheChange read_cache_change(Fields& fields);

// The body that makes such a cache again, every field given.
ordered_json cache_config_body(const CacheConfig& config);

// The configuration again (with the defaults filled in), block_bytes, and per tier what was
// reserved.
ordered_json cache_shape(const Cache& cache);
// The same, and per tier the counts of blocks by state, the hits and the pressure.
ordered_json cache_status(const Cache& cache);

}  // namespace cairn
