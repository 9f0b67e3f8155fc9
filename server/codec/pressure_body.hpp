#pragma once

#include "blockmgr/index/config.hpp"
#include "server/codec/fields.hpp"

namespace cairn {

// {"elevated": 0.8, "warning": 0.9, "critical": 0.97, "reactions": {"critical": {"kind": "shrink",
// "target_use": 0.9}}}, all optional. `callback` writes a line to the log.
void read_pressure(Fields& fields, PressureConfig& out);
// The same again, every member given.
ordered_json pressure_body(const PressureConfig& config);

}  // namespace cairn
