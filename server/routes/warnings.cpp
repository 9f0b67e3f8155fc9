#include "server/routes/warnings.hpp"

#include <array>

#include "base/assert.hpp"
#include "server/routes/service.hpp"

namespace cairn {
namespace {

struct Kind {
  std::string_view name;
  LogLevel level;
  // Empty: the code that finds it logs it.
  std::string_view begins;
  std::string_view ends;
};

constexpr std::array kKinds = {
    Kind{"device_lost", LogLevel::error,
         "a device is lost; the tiers that are not on it are still served", "the device is back"},
    Kind{"device_left_out", LogLevel::warning, "", ""},
    Kind{"gpu_unused", LogLevel::warning, "", ""},
    Kind{"memory", LogLevel::warning, "", ""},
    Kind{"cache", LogLevel::error, "", "a cache that could not be made exists now, or was deleted"},
    Kind{"shared_node", LogLevel::warning, "a node of the shared store does not answer",
         "a node of the shared store answers again, or was removed"},
    Kind{"shared_peer", LogLevel::warning, "a server that has blocks does not answer",
         "a server that has blocks answers again, or has no more blocks"},
    Kind{"shared_url", LogLevel::error,
         "another server advertises this server's URL, and they take back each other's "
         "blocks: give each its own shared.advertise",
         "no other server advertises this server's URL any more"},
    Kind{"group", LogLevel::warning, "", ""},
};

const Kind& kind_of(std::string_view name) {
  for (const Kind& kind : kKinds) {
    if (kind.name == name) return kind;
  }
  invariant_broken("a warning has a kind", "nothing would report it");
}

void add_nodes(std::vector<Warning>& all, std::string_view kind,
               const std::vector<RemoteStoreStats::Node>& nodes) {
  for (const auto& node : nodes) {
    if (!node.last_error.empty()) all.push_back({kind, node.address, node.last_error});
  }
}

}  // namespace

std::vector<std::string_view> warning_kinds() {
  std::vector<std::string_view> names;
  for (const Kind& kind : kKinds) names.push_back(kind.name);
  return names;
}

std::vector<Warning> warnings_of(const Service& service) {
  std::vector<Warning> all;
  if (auto lost = service.runtime.lost()) all.push_back({"device_lost", "", *std::move(lost)});
  for (const LeftOutDevice& device : service.runtime.left_out()) {
    all.push_back({"device_left_out", std::to_string(device.id), device.why});
  }
  if (!service.runtime_fallback.empty()) {
    all.push_back({"gpu_unused", "", service.runtime_fallback});
  }
  if (service.reserve.is_short()) {
    all.push_back({"memory", "", "memory is short: new requests are refused"});
  }
  for (const UnmadeCache& cache : service.unmade.list()) {
    all.push_back({"cache", cache.name, "it could not be made: " + cache.why.detail});
  }
  if (service.shared != nullptr) {
    add_nodes(all, "shared_node", service.shared->store_stats().nodes);
    add_nodes(all, "shared_peer", service.shared->peer_stats().servers);
    for (const std::string& other : service.shared->same_url()) {
      all.push_back({"shared_url", other, "it advertises this server's URL"});
    }
  }
  for (const GroupInfo& group : service.manager.groups().list()) {
    if (group.error) all.push_back({"group", group.name, group.error->detail});
  }
  return all;
}

void WarningLog::look(const std::vector<Warning>& now) {
  std::map<std::pair<std::string_view, std::string>, std::string> current;
  for (const Warning& warning : now) {
    current.emplace(std::pair(warning.kind, warning.subject), warning.detail);
  }
  for (const auto& [what, detail] : current) {
    const Kind& kind = kind_of(what.first);
    if (kind.begins.empty() || logged_.contains(what)) continue;
    log_.log(kind.level, kind.begins, {{"what", what.second}, {"why", detail}});
  }
  for (const auto& [what, detail] : logged_) {
    const Kind& kind = kind_of(what.first);
    if (kind.ends.empty() || current.contains(what)) continue;
    log_.log(LogLevel::warning, kind.ends, {{"what", what.second}});
  }
  logged_ = std::move(current);
}

}  // namespace cairn
