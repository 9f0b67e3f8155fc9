#include "blockmgr/index/cache_name.hpp"
#include "server/codec/dom_blocks.hpp"
#include "server/codec/ids.hpp"
#include "server/routes/common.hpp"
#include "server/routes/handlers.hpp"

namespace cairn::routes {
namespace {

// Body of making a snapshot (with a name) or restoring one (without).
struct SnapshotBody {
  Snapshots::MakeRequest make;
  bool partial = false;
  bool replace = false;
  std::uint32_t wait_ms = 0;
};

SnapshotBody read_make(Fields& fields) {
  SnapshotBody body;
  body.make.name = fields.string("name");
  body.make.compress = fields.optional_bool("compress").value_or(false);
  body.wait_ms = read_wait_ms(fields);
  return body;
}

SnapshotBody read_restore(Fields& fields) {
  SnapshotBody body;
  body.partial = fields.optional_bool("partial").value_or(false);
  body.replace = fields.optional_bool("replace").value_or(false);
  body.wait_ms = read_wait_ms(fields);
  return body;
}

Result<std::string> cache_name_of(const Call& call) {
  if (is_cache_name(call.path[0])) return std::string(call.path[0]);
  return Error{ErrorCode::unknown_cache,
               "there can be no cache of that name: " + std::string(kCacheNameRule)};
}

ordered_json snapshot_body(const SnapshotInfo& info) {
  ordered_json body = {{"name", info.name},
                       {"bytes", info.file_bytes},
                       {"blocks", info.blocks},
                       {"created_at_ms", info.created_unix_ms},
                       {"compressed", info.compressed}};
  if (info.broken) {
    body["error"] = {{"code", to_string(info.broken->code)}, {"detail", info.broken->detail}};
  }
  return body;
}

void answer_job(Service& service, const Result<TransferId>& id, std::uint32_t wait_ms,
                Reply& answer) {
  if (!id) return answer.error(id.error());
  answer_when_ended(service, {.id = *id, .wait_ms = wait_ms, .status_unfinished = 202},
                    std::move(answer));
}

}  // namespace

void make_snapshot(Service& service, const Call& call, std::shared_ptr<Cache> cache, Reply reply) {
  auto body = read_body(call, kMaxDocumentValues, read_make);
  if (!body) return reply.error(body.error());
  answer_on(service.admin, std::move(reply),
            [&service, cache = std::move(cache), body = std::move(*body)](Reply& answer) {
              answer_job(service, service.manager.snapshots().make(cache, body.make), body.wait_ms,
                         answer);
            });
}

void restore_snapshot(Service& service, const Call& call, std::shared_ptr<Cache> cache,
                      Reply reply) {
  auto body = read_optional_body(call, read_restore);
  if (!body) return reply.error(body.error());
  auto file = service.manager.snapshots().file_of(call.path[0], call.path[1]);
  if (!file) return reply.error({ErrorCode::unknown_snapshot, file.error().detail});
  answer_on(service.admin, std::move(reply),
            [&service, cache = std::move(cache), file = std::move(*file),
             body = std::move(*body)](Reply& answer) {
              const auto id = service.manager.snapshots().restore(
                  cache, {.file = file, .partial = body.partial, .replace = body.replace});
              answer_job(service, id, body.wait_ms, answer);
            });
}

// The snapshots of a deleted cache stay: they can still be listed and deleted.
void list_snapshots(Service& service, const Call& call, Reply reply) {
  auto name = cache_name_of(call);
  if (!name) return reply.error(name.error());
  answer_on(service.readers, std::move(reply), [&service, name = std::move(*name)](Reply& answer) {
    const bool exists = service.manager.find_cache(name).has_value();
    const auto infos = service.manager.snapshots().list(name, exists);
    if (!infos) return answer.error(infos.error());
    ordered_json list = ordered_json::array();
    for (const SnapshotInfo& info : *infos) list.push_back(snapshot_body(info));
    answer.document(200, {{"snapshots", std::move(list)}});
  });
}

void delete_snapshot(Service& service, const Call& call, Reply reply) {
  auto name = cache_name_of(call);
  if (!name) return reply.error(name.error());
  answer_on(
      service.admin, std::move(reply),
      [&service, name = std::move(*name), snapshot = std::string(call.path[1])](Reply& answer) {
        const auto removed = service.manager.snapshots().remove(name, snapshot);
        if (removed) return answer.empty(204);
        // No snapshot has an invalid name.
        if (removed.error().code == ErrorCode::out_of_range) {
          return answer.error({ErrorCode::unknown_snapshot, removed.error().detail});
        }
        answer.error(removed.error());
      });
}

}  // namespace cairn::routes
