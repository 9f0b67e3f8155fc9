#include "server/events/event_groups.hpp"

namespace cairn {
namespace {

bool continues(const EventGroup& group, const BlockEvent& event) {
  if (event.kind == BlockEventKind::cleared || group.keys.size() >= kMaxGroupKeys) return false;
  if (group.kind != event.kind || group.cache != event.cache || group.tier != event.tier ||
      !event.key || event.key->kv_group() != group.kv_group) {
    return false;
  }
  return event.kind == BlockEventKind::removed ||
         (event.parent && *event.parent == group.keys.back());
}

}  // namespace

std::vector<EventGroup> group_events(std::span<const BlockEvent> events) {
  std::vector<EventGroup> groups;
  for (const BlockEvent& event : events) {
    if (groups.empty() || !continues(groups.back(), event)) {
      groups.push_back({.kind = event.kind,
                        .cache = event.cache,
                        .tier = event.tier,
                        .kv_group = event.key ? event.key->kv_group() : KvGroupNumber{0},
                        .keys = {},
                        .parent = event.parent});
    }
    EventGroup& group = groups.back();
    if (event.key) group.keys.push_back(*event.key);
    group.any_metadata = group.any_metadata || event.has_metadata;
    group.last_id = event.id;
    group.unix_ms = event.unix_ms;
  }
  return groups;
}

}  // namespace cairn
