#pragma once

#include <map>
#include <string>

#include "base/log.hpp"
#include "blockmgr/index/pressure.hpp"
#include "server/routes/service.hpp"

namespace cairn {

// Watches the pressure of the memory pools, and runs the reactions of the levels that they enter.
// Not thread-safe.
class PoolWatch {
 public:
  PoolWatch(const PressureConfig& config, Logger& log) : config_(config), log_(log) {}
  // Memory is given back on service.admin, because a device's streams may have to end first.
  void look(Service& service);

 private:
  bool has_reaction() const;

  const PressureConfig config_;
  Logger& log_;
  std::map<std::string, PoolGauge> gauges_;  // by allocator
};

}  // namespace cairn
