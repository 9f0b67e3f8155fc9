#include <algorithm>
#include <cmath>

#include "blockmgr/cache/cache_copy.hpp"
#include "blockmgr/index/cache_name.hpp"
#include "server/codec/dom_blocks.hpp"
#include "server/codec/ids.hpp"
#include "server/codec/requests.hpp"
#include "server/routes/common.hpp"
#include "server/routes/handlers.hpp"

namespace cairn::routes {
namespace {

// A number that is not finite becomes null: JSON has no word for it.
ordered_json numbers_body(const Numbers& numbers) {
  ordered_json list = ordered_json::array();
  for (std::size_t i = 0; i < numbers.count(); ++i) {
    std::visit([&list](auto value) { list.push_back(value); }, numbers.at(i));
    if (list.back().is_number_float() && !std::isfinite(list.back().get<double>())) {
      list.back() = nullptr;
    }
  }
  return list;
}

constexpr std::array<std::string_view, 2> kModes = {"copy", "move"};
// Far more than anyone needs; the scheduler's own range is wider.
constexpr std::int64_t kMaxPriority = 1000;

struct TransferBody {
  TransferRequest request;
  std::optional<std::string> from_cache;
  std::optional<KvGroupNumber> kv_group;  // nullopt: all
  std::uint32_t wait_ms = 0;
};

TransferBody read_transfer(Fields& fields, std::size_t max_keys, const KvGroupNames& groups) {
  TransferBody body;
  body.request.keys = read_keys(fields, "keys", max_keys);
  body.request.to = read_tier(fields, "to");
  body.request.move = fields.optional_word("mode", kModes).value_or(0) == 1;
  body.request.priority = static_cast<std::int32_t>(
      fields.optional_signed("priority", {-kMaxPriority, kMaxPriority}).value_or(0));
  body.from_cache = fields.optional_string("from_cache");
  body.kv_group = read_kv_group(fields, groups);
  if (body.from_cache && body.request.move) {
    fields.errors().add(ErrorCode::impossible,
                        "mode is move; what comes from another cache (from_cache) is copied");
  }
  body.wait_ms = read_wait_ms(fields);
  return body;
}

struct DrainBody {
  std::optional<Tier> to;
  std::uint32_t wait_ms = 0;
};

ordered_json summary_body(const TransferSummary& summary) {
  ordered_json body = {{"transfer", transfer_text(summary.id)},
                       {"cache", nullptr},
                       {"state", to_string(summary.state)},
                       {"blocks_done", summary.blocks_done},
                       {"blocks_total", summary.blocks_total},
                       {"blocks_failed", summary.blocks_failed},
                       {"bytes", summary.bytes}};
  if (!summary.cache.empty()) body["cache"] = summary.cache;
  if (summary.agreed_blocks) body["agreed_blocks"] = *summary.agreed_blocks;
  if (summary.values) body["values"] = numbers_body(*summary.values);
  if (summary.layers_done) body["layers_done"] = *summary.layers_done;
  if (summary.error) {
    body["error"] = {{"code", to_string(summary.error->code)}, {"detail", summary.error->detail}};
  }
  return body;
}

ordered_json transfer_body(const Service& service, const TransferStatus& status) {
  ordered_json body = summary_body(status);
  ordered_json failures = ordered_json::array();
  const auto cache = service.manager.find_cache(status.cache);
  for (const auto& failure : status.failures) {
    ordered_json& described = failures.emplace_back(ordered_json{{"key", key_text(failure.key)}});
    if (cache && !(*cache)->config().kv_groups.empty()) {
      described["kv_group"] = KvGroupNames((*cache)->config()).name(failure.key.kv_group());
    }
    described["code"] = to_string(failure.error.code);
    described["detail"] = failure.error.detail;
  }
  body["failures"] = std::move(failures);
  return body;
}

Result<TransferListRequest> read_transfer_list(const Call& call) {
  Query query(call.head.query);
  TransferListRequest request;
  if (const auto name = query.text("cache")) {
    request.cache = std::string(*name);
    if (!is_cache_name(*name)) {
      query.refuse(ErrorCode::malformed, "cache is '" + std::string(name->substr(0, 64)) + "'; " +
                                             std::string(kCacheNameRule));
    }
  }
  if (const auto word = query.text("state")) {
    request.state = transfer_state_from(*word);
    if (!request.state) {
      query.refuse(ErrorCode::out_of_range,
                   "state is '" + std::string(word->substr(0, 64)) +
                       "'; it takes one of queued, running, done, failed, cancelled");
    }
  }
  request.limit = query.limit();
  request.cursor = query.number("cursor", {}).value_or(0);
  CAIRN_TRY(query.finish());
  if (request.cache && !call.may_touch(*request.cache)) {
    return Error{ErrorCode::forbidden, "this token may not touch cache '" + *request.cache + "'"};
  }
  request.may_see = [&call](std::string_view cache) { return call.may_touch(cache); };
  return request;
}

Result<TransferId> copy_from(Service& service, const Call& call, std::shared_ptr<Cache> into,
                             TransferBody body) {
  if (!call.may_touch(*body.from_cache)) {
    return Error{ErrorCode::forbidden,
                 "this token may not touch cache '" + body.from_cache->substr(0, 64) + "'"};
  }
  auto from = service.manager.find_cache(*body.from_cache);
  if (!from) return std::move(from).error();
  std::vector<BlockKey> keys = blocks_of_keys(**from, std::move(body.request.keys), body.kv_group);
  return copy_between_caches({.from = std::move(*from),
                              .into = std::move(into),
                              .keys = std::move(keys),
                              .to = body.request.to,
                              .priority = body.request.priority,
                              .quota = call.quota(),
                              .pins = call.pins()});
}

bool has_ended(TransferState state) {
  return state == TransferState::done || state == TransferState::failed ||
         state == TransferState::cancelled;
}

// The error of a transfer that did nothing because the job queue was full; nullopt if it was not.
std::optional<Error> kept_out(const TransferStatus& status) {
  if (status.state != TransferState::failed || status.blocks_done > 0 || status.failures.empty()) {
    return std::nullopt;
  }
  const bool all_full = std::ranges::all_of(status.failures, [](const auto& failure) {
    return failure.error.code == ErrorCode::queue_full;
  });
  if (!all_full) return std::nullopt;
  return status.failures.front().error;
}

Result<TransferId> transfer_of(const Call& call) {
  const auto id = transfer_from(call.path[0]);
  if (id) return *id;
  return Error{ErrorCode::unknown_transfer,
               "there can be no transfer '" + std::string(call.path[0].substr(0, 64)) + "'"};
}

}  // namespace

void answer_when_ended(Service& service, const WhenEnded& when, Reply reply) {
  auto shared = std::make_shared<Reply>(std::move(reply));
  auto waiting = service.waits.wait(when.id, when.wait_ms, [&service, shared, when] {
    auto status = service.manager.transfer(when.id);
    if (!status) return shared->error(status.error());
    if (when.starts_it) {
      if (const auto full = kept_out(*status)) return shared->error(*full);
    }
    if (has_ended(status->state) || when.status_unfinished == 200) {
      return shared->document(200, transfer_body(service, *status));
    }
    shared->located(when.status_unfinished, "/v1/transfers/" + transfer_text(when.id),
                    transfer_body(service, *status));
  });
  if (!waiting) shared->error(waiting.error());
}

void end_with_transfer(const Service& service, TransferId id, Span span) {
  if (!span) return;
  span.set("cairn.transfer", transfer_text(id));
  static_cast<void>(service.manager.watch_transfer(
      id, [span = std::move(span)](const TransferStatus& status) mutable {
        span.set("cairn.blocks", status.blocks_done);
        span.set("cairn.bytes", status.bytes);
        span.set("cairn.state", to_string(status.state));
        if (status.error) {
          span.fail(status.error->detail);
        } else if (!status.failures.empty()) {
          span.fail(status.failures.front().error.detail);
        }
        span.end();
      }));
}

void start_transfer(Service& service, const Call& call, std::shared_ptr<Cache> cache, Reply reply) {
  const KvGroupNames groups(cache->config());
  auto body = read_body(call, max_values(service), [&](Fields& fields) {
    return read_transfer(fields, service.manager.options().max_blocks_per_request, groups);
  });
  if (!body) return reply.error(body.error());
  if (auto has = check_tier(*cache, body->request.to); !has) return reply.error(has.error());
  const std::uint32_t wait_ms = body->wait_ms;
  Span span = call.begin_span("transfer");
  span.set("cairn.to", to_string(body->request.to));
  span.set("cairn.keys", body->request.keys.size());
  body->request.quota = call.quota();
  body->request.pins = call.pins();
  if (!body->from_cache) {
    body->request.keys = blocks_of_keys(*cache, std::move(body->request.keys), body->kv_group);
  }
  auto id = body->from_cache ? copy_from(service, call, cache, std::move(*body))
                             : cache->transfer(std::move(body->request));
  if (!id) return reply.error(id.error());
  end_with_transfer(service, *id, std::move(span));
  answer_when_ended(service,
                    {.id = *id, .wait_ms = wait_ms, .status_unfinished = 202, .starts_it = true},
                    std::move(reply));
}

void drain(Service& service, const Call& call, std::shared_ptr<Cache> cache, Reply reply) {
  auto body = read_optional_body(call, [](Fields& fields) {
    return DrainBody{.to = read_optional_tier(fields, "to"), .wait_ms = read_wait_ms(fields)};
  });
  if (!body) return reply.error(body.error());
  if (body->to) {
    if (auto has = check_tier(*cache, *body->to); !has) return reply.error(has.error());
  }
  answer_on(service.readers, std::move(reply),
            [&service, cache = std::move(cache), body = *body](Reply& answer) {
              auto id = cache->drain(body.to);
              if (!id) return answer.error(id.error());
              answer_when_ended(
                  service,
                  {.id = *id, .wait_ms = body.wait_ms, .status_unfinished = 202, .starts_it = true},
                  std::move(answer));
            });
}

void list_transfers(Service& service, const Call& call, Reply reply) {
  const auto request = read_transfer_list(call);
  if (!request) return reply.error(request.error());
  answer_on(service.readers, std::move(reply),
            [list = service.manager.transfers(*request)](Reply& answer) {
              ordered_json transfers = ordered_json::array();
              for (const auto& summary : list.transfers) transfers.push_back(summary_body(summary));
              answer.document(200, {{"transfers", std::move(transfers)},
                                    {"next_cursor", cursor_body(list.next_cursor)}});
            });
}

void get_transfer(Service& service, const Call& call, Reply reply) {
  auto id = transfer_of(call);
  if (!id) return reply.error(id.error());
  Query query(call.head.query);
  const auto wait_ms =
      static_cast<std::uint32_t>(query.number("wait_ms", {0, kMaxWaitMs}).value_or(0));
  if (auto read = query.finish(); !read) return reply.error(read.error());
  answer_when_ended(service, {.id = *id, .wait_ms = wait_ms}, std::move(reply));
}

void cancel_transfer(Service& service, const Call& call, Reply reply) {
  auto id = transfer_of(call);
  if (!id) return reply.error(id.error());
  auto status = service.manager.cancel_transfer(*id);
  if (!status) return reply.error(status.error());
  reply.document(200, transfer_body(service, *status));
}

}  // namespace cairn::routes
