#include <charconv>

#include "server/codec/ids.hpp"
#include "server/codec/kv_group_names.hpp"
#include "server/codec/requests.hpp"
#include "server/routes/common.hpp"
#include "server/routes/handlers.hpp"
#include "server/routes/problem.hpp"

namespace cairn::routes {
namespace {

// Receives the bytes of a block (or a piece) from the socket into its slot.
class SlotUpload final : public http::Upload {
 public:
  SlotUpload(BlockWriter writer, ReplyStyle style) : writer_(std::move(writer)), style_(style) {}

  // Called once: the room is as long as the body.
  void next(UniqueFunction<void(Room)> ready) override { writer_.room(std::move(ready)); }

  void finish(http::Responder respond) override {
    writer_.finish([reply = Reply(std::move(respond), style_)](Result<> done) mutable {
      if (!done) return reply.error(done.error());
      reply.empty(204);
    });
  }

 private:
  BlockWriter writer_;
  ReplyStyle style_;
};

Result<Cache::WriteTarget> read_target(const Call& call, const KvGroupNames& groups) {
  Query query(call.head.query);
  Cache::WriteTarget target;
  const auto tier = tier_from(call.path[1]);
  if (!tier) {
    return Error{ErrorCode::unknown_tier, "there is no tier '" +
                                              std::string(call.path[1].substr(0, 64)) +
                                              "'; it is one of device, pinned, disk"};
  }
  target.block.tier = *tier;
  const std::string_view slot = call.path[2];
  const auto [end, error] =
      std::from_chars(slot.data(), slot.data() + slot.size(), target.block.slot);
  if (error != std::errc() || end != slot.data() + slot.size()) {
    return Error{ErrorCode::unknown_slot,
                 "there can be no slot '" + std::string(slot.substr(0, 64)) + "'"};
  }
  const auto generation = query.number("generation", {});
  query.require("generation", generation.has_value());
  target.block.generation = generation.value_or(0);
  const auto lease = query.text("lease");
  query.require("lease", lease.has_value());
  target.part = query.part();
  target.block.kv_group = read_one_kv_group(query, groups);
  CAIRN_TRY(query.finish());
  CAIRN_TRY(read_lease(*lease, target.lease));
  return target;
}

}  // namespace

Result<std::unique_ptr<http::Upload>> write_slot_body(Service&, const Call& call,
                                                      std::shared_ptr<Cache> cache) {
  auto target = read_target(call, KvGroupNames(cache->config()));
  if (!target) return std::move(target).error();
  CAIRN_TRY(check_tier(*cache, target->block.tier));
  auto writer = cache->write(*target);
  if (!writer) return std::move(writer).error();
  CAIRN_TRY(check_length(call.head, writer->size_bytes()));
  return std::unique_ptr<http::Upload>(
      std::make_unique<SlotUpload>(std::move(*writer), call.style));
}

}  // namespace cairn::routes
