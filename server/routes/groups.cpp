#include <algorithm>
#include <array>
#include <cmath>

#include "blockmgr/index/cache_name.hpp"
#include "server/codec/dom_blocks.hpp"
#include "server/codec/ids.hpp"
#include "server/codec/requests.hpp"
#include "server/routes/common.hpp"
#include "server/routes/handlers.hpp"

namespace cairn::routes {
namespace {

ordered_json group_body(const GroupInfo& group) {
  ordered_json body = {{"name", group.name},
                       {"rank", group.place.rank},
                       {"world_size", group.place.world_size},
                       {"device_id", group.device_id},
                       {"collective", group.collective},
                       {"state", to_string(group.state)},
                       {"queued_operations", group.queued_operations}};
  if (group.error) {
    body["error"] = {{"code", to_string(group.error->code)}, {"detail", group.error->detail}};
  }
  return body;
}

GroupJoin read_join(Fields& fields) {
  GroupJoin join;
  join.name = fields.string("name");
  join.place.rank = static_cast<std::uint32_t>(fields.number("rank", kAnyU32));
  join.place.world_size = static_cast<std::uint32_t>(fields.number("world_size", kAnyU32));
  join.device_id =
      static_cast<int>(fields.optional_number("device_id", {0, INT32_MAX}).value_or(0));
  join.unique_id = fields.optional_string("unique_id").value_or("");
  if (!is_cache_name(join.name)) {
    fields.errors().add(ErrorCode::malformed, "name is '" + join.name.substr(0, 80) +
                                                  "'; a group's name is written as a cache's: " +
                                                  std::string(kCacheNameRule));
  }
  return join;
}

struct CollectiveBody {
  std::string cache = {};
  CollectiveRequest request;
  std::uint32_t wait_ms = 0;
};

CollectiveBody read_share(Fields& fields, CollectiveKind kind, std::size_t max_keys) {
  CollectiveBody body;
  body.request.kind = kind;
  body.cache = fields.string("cache");
  body.request.keys = read_keys(fields, "keys", max_keys);
  if (kind == CollectiveKind::send || kind == CollectiveKind::recv) {
    body.request.other = static_cast<std::uint32_t>(fields.number("peer", kAnyU32));
  } else if (kind == CollectiveKind::broadcast) {
    body.request.other = static_cast<std::uint32_t>(fields.number("root", kAnyU32));
  }
  if (kind != CollectiveKind::agree && kind != CollectiveKind::send) {
    body.request.tier = read_optional_tier(fields, "tier");
  }
  body.wait_ms = read_wait_ms(fields);
  return body;
}

void share(Service& service, const Call& call, CollectiveKind kind, Reply reply) {
  auto body = read_body(call, max_values(service), [&service, kind](Fields& fields) {
    return read_share(fields, kind, service.manager.options().max_blocks_per_request);
  });
  if (!body) return reply.error(body.error());
  auto cache = service.manager.find_cache(body->cache);
  if (!cache) return reply.error(cache.error());
  if (const auto tier = body->request.tier) {
    if (auto has = check_tier(**cache, *tier); !has) return reply.error(has.error());
  }
  body->request.cache = std::move(*cache);
  auto pins = LeaseQuotaShare::take(call.pins(), body->request.keys.size());
  if (!pins) return reply.error(pins.error());
  body->request.pins = std::make_shared<LeaseQuotaShare>(std::move(*pins));
  auto id = service.manager.groups().share(call.path[0], std::move(body->request));
  if (!id) return reply.error(id.error());
  answer_when_ended(service, {.id = *id, .wait_ms = body->wait_ms, .status_unfinished = 202},
                    std::move(reply));
}

template <class Enum, std::size_t kCount>
std::array<std::string_view, kCount> words_of() {
  std::array<std::string_view, kCount> words{};
  for (std::size_t i = 0; i < kCount; ++i) words[i] = to_string(static_cast<Enum>(i));
  return words;
}

void read_integer(const json& item, const std::string& path, Numbers& out, DecodeErrors& errors) {
  const IntegerBounds bounds = bounds_of(out.type());
  const auto value = read_signed(
      item, path,
      {std::max(bounds.min, -kMaxCollectiveValue), std::min(bounds.max, kMaxCollectiveValue)},
      errors);
  if (value) out.add(*value);
}

void read_float(const json& item, const std::string& path, Numbers& out, DecodeErrors& errors) {
  if (!item.is_number()) {
    errors.add(ErrorCode::wrong_type, path + " is no number");
    return;
  }
  out.add(item.get<double>());
  if (std::isfinite(std::get<double>(out.at(out.count() - 1)))) return;
  errors.add(ErrorCode::out_of_range,
             path + " is " + item.dump() + ", too large for " + std::string(to_string(out.type())));
}

Numbers read_values(Fields& fields, std::size_t max_values) {
  const auto types = words_of<DataType, kNumDataTypes>();
  const auto type = fields.optional_word("dtype", types);
  Numbers values(type ? static_cast<DataType>(*type) : DataType::int64);
  const json* list = fields.list("values");
  if (list == nullptr) return values;
  const std::string path = fields.path_of("values");
  if (list->empty() || list->size() > max_values) {
    fields.errors().add(ErrorCode::out_of_range, path + " has " + std::to_string(list->size()) +
                                                     " elements; it takes 1 to " +
                                                     std::to_string(max_values));
    return values;
  }
  const auto read_one = is_integer(values.type()) ? read_integer : read_float;
  for (const json& item : *list) {
    read_one(item, path + "[" + std::to_string(values.count()) + "]", values, fields.errors());
    if (fields.errors().any()) return values;
  }
  return values;
}

}  // namespace

void join_group(Service& service, const Call& call, Reply reply) {
  auto join = read_body(call, kMaxDocumentValues, read_join);
  if (!join) return reply.error(join.error());
  // On `admin`, because it first removes what earlier refusals left, threads included.
  answer_on(service.admin, std::move(reply), [&service, join = std::move(*join)](Reply& answer) {
    service.manager.groups().join(join,
                                  [reply = std::move(answer)](Result<GroupInfo> group) mutable {
                                    if (!group) return reply.error(group.error());
                                    ordered_json body = group_body(*group);
                                    // Only this response contains it: anyone who has it may join.
                                    body["unique_id"] = group->unique_id;
                                    reply.located(201, "/v1/groups/" + group->name, body);
                                  });
  });
}

void list_groups(Service& service, const Call&, Reply reply) {
  ordered_json groups = ordered_json::array();
  for (const GroupInfo& group : service.manager.groups().list())
    groups.push_back(group_body(group));
  reply.document(200, {{"groups", std::move(groups)}});
}

void get_group(Service& service, const Call& call, Reply reply) {
  const auto group = service.manager.groups().find(call.path[0]);
  if (!group) return reply.error(group.error());
  reply.document(200, group_body(*group));
}

void leave_group(Service& service, const Call& call, Reply reply) {
  answer_on(service.admin, std::move(reply),
            [&service, name = std::string(call.path[0])](Reply& answer) {
              const auto left = service.manager.groups().leave(name);
              if (!left) return answer.error(left.error());
              answer.empty(204);
            });
}

void group_send(Service& service, const Call& call, Reply reply) {
  share(service, call, CollectiveKind::send, std::move(reply));
}
void group_recv(Service& service, const Call& call, Reply reply) {
  share(service, call, CollectiveKind::recv, std::move(reply));
}
void group_broadcast(Service& service, const Call& call, Reply reply) {
  share(service, call, CollectiveKind::broadcast, std::move(reply));
}
void group_all_gather(Service& service, const Call& call, Reply reply) {
  share(service, call, CollectiveKind::all_gather, std::move(reply));
}
void group_all_reduce(Service& service, const Call& call, Reply reply) {
  auto body = read_body(call, max_values(service), [&service](Fields& fields) {
    CollectiveBody read{.request = {.kind = CollectiveKind::all_reduce}};
    read.request.values = read_values(fields, service.manager.groups().options().max_values);
    read.request.reduction =
        static_cast<Reduction>(fields.word("op", words_of<Reduction, kNumReductions>()));
    read.wait_ms = read_wait_ms(fields);
    return read;
  });
  if (!body) return reply.error(body.error());
  auto id = service.manager.groups().share(call.path[0], std::move(body->request));
  if (!id) return reply.error(id.error());
  answer_when_ended(service, {.id = *id, .wait_ms = body->wait_ms, .status_unfinished = 202},
                    std::move(reply));
}
void group_agree(Service& service, const Call& call, Reply reply) {
  share(service, call, CollectiveKind::agree, std::move(reply));
}

}  // namespace cairn::routes
