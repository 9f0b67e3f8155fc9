// Each failure in each state of a transfer, as in the table of docs/design/transfers.md. Checks
// where the blocks are afterwards, what the client sees, and that nothing stays held.
#include <gtest/gtest.h>

#include <fstream>

#include "blockmgr/cache/cache_copy.hpp"
#include "tests/blockmgr/rig.hpp"
#include "tests/fakes/faked_disk.hpp"
#include "tests/fakes/faulty_disk_io.hpp"
#include "tests/fakes/gated_disk_io.hpp"

namespace cairn::testing {
namespace {

enum class Transfer : std::uint8_t { offload, write_through, down, up, between_caches };
enum class Happens : std::uint8_t {
  nothing,
  no_slots,        // every slot of the tier is held
  copy_fails,      // the disk returns an error
  wrong_checksum,  // the disk has other bytes
  key_deleted,     // while bytes are on their way
  lease_ends,      // likewise, of the lease that holds the slots
  cancelled,       // before bytes are on their way
};

struct Case {
  Transfer transfer;
  Happens happens;
  bool source_stays;
  bool arrives;
  std::optional<TransferState> reported = {};  // nullopt: no transfer, or one refused at once
  std::optional<ErrorCode> why = {};
};

constexpr auto kDone = TransferState::done;
constexpr auto kFailed = TransferState::failed;

const Case kCases[] = {
    // No client waits for the copy, so room is made even if it fails.
    {Transfer::offload, Happens::nothing, false, true},
    {Transfer::offload, Happens::no_slots, false, false},
    {Transfer::offload, Happens::copy_fails, false, false},
    {Transfer::offload, Happens::key_deleted, false, false},
    // The block is committed already. A failure only costs the second copy.
    {Transfer::write_through, Happens::nothing, true, true},
    {Transfer::write_through, Happens::no_slots, true, false},
    {Transfer::write_through, Happens::copy_fails, true, false},
    {Transfer::write_through, Happens::key_deleted, false, false},
    // A failed write keeps the source.
    {Transfer::down, Happens::nothing, true, true, kDone},
    {Transfer::down, Happens::no_slots, true, false, {}, ErrorCode::no_capacity},
    {Transfer::down, Happens::copy_fails, true, false, kFailed, ErrorCode::io_error},
    {Transfer::down, Happens::key_deleted, false, false, kFailed, ErrorCode::unknown_key},
    {Transfer::down, Happens::cancelled, true, false, TransferState::cancelled},
    // A failed read drops the copy, and the key becomes a miss.
    {Transfer::up, Happens::nothing, true, true, kDone},
    {Transfer::up, Happens::no_slots, true, false, {}, ErrorCode::no_capacity},
    {Transfer::up, Happens::copy_fails, false, false, kFailed, ErrorCode::io_error},
    {Transfer::up, Happens::wrong_checksum, false, false, kFailed, ErrorCode::checksum_mismatch},
    {Transfer::up, Happens::key_deleted, false, false, kFailed, ErrorCode::unknown_key},
    {Transfer::up, Happens::cancelled, true, false, TransferState::cancelled},
    // A lease holds the slots, and the copied block belongs to the other cache.
    {Transfer::between_caches, Happens::nothing, true, true, kDone},
    {Transfer::between_caches, Happens::no_slots, true, false, kFailed, ErrorCode::no_capacity},
    {Transfer::between_caches, Happens::copy_fails, false, false, kFailed, ErrorCode::io_error},
    {Transfer::between_caches, Happens::wrong_checksum, false, false, kFailed,
     ErrorCode::checksum_mismatch},
    {Transfer::between_caches, Happens::key_deleted, false, true, kDone},
    {Transfer::between_caches, Happens::lease_ends, true, false, kFailed, ErrorCode::lease_expired},
};

const char* name_of(Transfer transfer) {
  constexpr const char* kNames[] = {"Offload", "WriteThrough", "Down", "Up", "BetweenCaches"};
  return kNames[static_cast<std::size_t>(transfer)];
}
const char* name_of(Happens happens) {
  constexpr const char* kNames[] = {"Nothing",    "NoSlots",   "CopyFails", "WrongChecksum",
                                    "KeyDeleted", "LeaseEnds", "Cancelled"};
  return kNames[static_cast<std::size_t>(happens)];
}
std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return std::string(name_of(info.param.transfer)) + name_of(info.param.happens);
}

BlockManagerOptions options() {
  BlockManagerOptions options;
  options.disk.direct = false;  // the test writes to the file too
  return options;
}

class TransferStates : public ::testing::TestWithParam<Case> {
 protected:
  TransferStates()
      : rig_({.disk =
                  [this](std::unique_ptr<DiskIo> disk) {
                    return gate_.wrap()(faulty_.wrap()(std::move(disk)));
                  },
              .options = options(),
              .workers = 1}) {
    CacheConfig config = small_cache({.pinned = kSlots, .disk = kSlots}, mode());
    source_ = rig_.cache(config);
    config.name = "other";
    target_ = is(Transfer::between_caches) ? rig_.cache(config) : source_;
  }
  ~TransferStates() override {
    rig_.manager.reset();
    rig_.scheduler.reset();  // before the disk that it borrows
  }

  static constexpr std::uint32_t kSlots = 3;
  static bool is(Transfer transfer) { return GetParam().transfer == transfer; }
  static bool is(Happens happens) { return GetParam().happens == happens; }
  static OffloadMode mode() {
    if (is(Transfer::offload)) return OffloadMode::on_evict;
    return is(Transfer::write_through) ? OffloadMode::on_commit : OffloadMode::never;
  }

  // Works while transfers wait at the gate.
  void erase_keys() {
    for (const BlockKey& each : keys_) ASSERT_TRUE(source_->erase(each));
  }
  void damage_keys() {
    std::fstream file(rig_.dir.path() / "disk/test",
                      std::ios::in | std::ios::out | std::ios::binary);
    const BlockList there = source_->list({.tier = Tier::disk, .limit = kSlots}).value();
    for (const BlockInfo& block : there.blocks) {
      const auto at = static_cast<std::streamoff>(8192 + block.handle.slot * 8192 + 4096 + 17);
      file.seekg(at);
      const char byte = static_cast<char>(file.get() ^ 4);
      file.seekp(at);
      file.put(byte);
    }
  }

  // Stores the blocks and arranges the failure.
  void prepare() {
    if (is(Transfer::write_through)) {
      written_ = rig_.allocate(*source_, {.count = 2, .tier = from_}).value();
      for (std::size_t i = 0; i < keys_.size(); ++i) {
        ASSERT_TRUE(rig_.write(*source_, {.lease = written_->lease, .block = written_->blocks[i]},
                               bytes_of(keys_[i])));
      }
    } else {
      ASSERT_TRUE(rig_.put(*source_, {.keys = keys_, .tier = from_}));
    }
    if (is(Happens::cancelled)) {
      ASSERT_TRUE(rig_.put(*source_, {.keys = {key(9)}, .tier = from_}));
    }
    if (is(Happens::no_slots)) {
      ASSERT_TRUE(rig_.allocate(*target_, {.count = kSlots, .tier = to_, .lease_ms = 1000}));
    }
    if (is(Happens::wrong_checksum)) damage_keys();
    if (is(Happens::copy_fails)) faulty_->fail_range({.offset_bytes = 0, .size_bytes = 1u << 20});
    if (is(Happens::key_deleted) || is(Happens::lease_ends) || is(Happens::cancelled)) {
      gate_->close();
    }
  }

  void begin() {
    switch (GetParam().transfer) {
      case Transfer::offload:
        source_->allocate({.count = kSlots, .tier = Tier::pinned, .lease_ms = 1000},
                          [this](const Result<Allocation>& slots) { had_room_ = !!slots; });
        return;
      case Transfer::write_through:
        source_->commit(written_->lease,
                        {{.handle = written_->blocks[0], .key = keys_[0]},
                         {.handle = written_->blocks[1], .key = keys_[1]}},
                        [](const Result<std::vector<CommitStatus>>& done) { ASSERT_TRUE(done); },
                        {.release = true});
        return;
      case Transfer::down:
      case Transfer::up:
        return began(source_->transfer({.keys = keys_, .to = to_}));
      case Transfer::between_caches:
        return began(
            copy_between_caches({.from = source_, .into = target_, .keys = keys_, .to = to_}));
    }
  }

  void began(const Result<TransferId>& id) {
    if (id) {
      id_ = *id;
    } else {
      refused_ = id.error().code;
    }
  }

  void run() {
    if (is(Happens::cancelled)) {
      // The disk takes one part at a time.
      ASSERT_TRUE(source_->transfer({.keys = {key(9)}, .to = to_}));
      gate_->wait_for_calls(1);
      begin();
      ASSERT_TRUE(rig_.manager->cancel_transfer(*id_));
    } else {
      begin();
    }
    if (is(Happens::key_deleted) || is(Happens::lease_ends)) gate_->wait_for_calls(1);
    if (is(Happens::key_deleted)) erase_keys();
    if (is(Happens::lease_ends)) {
      rig_.clock.advance_ms(rig_.manager->options().max_lease_ms);
      rig_.manager->tick();
    }
    gate_->open();
    rig_.scheduler->wait_idle();
  }

  void expect_nothing_held(Cache& cache) {
    const CacheStats stats = cache.stats();
    EXPECT_EQ(stats.leases, 0u);
    for (Tier tier : {Tier::pinned, Tier::disk}) {
      EXPECT_EQ(count(cache, tier, SlotState::allocated), 0u) << to_string(tier);
      EXPECT_EQ(count(cache, tier, SlotState::committed), 0u) << to_string(tier);
      for (const RouteStats& route : stats.routes[index_of(tier)]) {
        EXPECT_EQ(route.in_flight_blocks, 0u);
      }
      for (const BlockKey& each : present_in(cache, tier)) {
        EXPECT_EQ(rig_.read(cache, each).value(), bytes_of(each));
      }
    }
    ASSERT_TRUE(cache.clear({}));
    for (Tier tier : {Tier::pinned, Tier::disk}) {
      EXPECT_EQ(count(cache, tier, SlotState::free), kSlots);
    }
  }

  fakes::FakedDisk<fakes::GatedDiskIo> gate_;
  fakes::FakedDisk<fakes::FaultyDiskIo> faulty_;
  Rig rig_;
  const std::vector<BlockKey> keys_ = keys(1, 2);
  const bool up_ = is(Transfer::up) || is(Transfer::between_caches);
  const Tier from_ = up_ ? Tier::disk : Tier::pinned;
  const Tier to_ = up_ ? Tier::pinned : Tier::disk;
  std::shared_ptr<Cache> source_;
  std::shared_ptr<Cache> target_;
  std::optional<Allocation> written_;
  std::optional<bool> had_room_;
  std::optional<TransferId> id_;
  std::optional<ErrorCode> refused_;
};

TEST_P(TransferStates, MatchTheTable) {
  const Case& expected = GetParam();
  prepare();
  run();
  for (const BlockKey& each : keys_) {
    EXPECT_EQ(is_in(*source_, from_, each), expected.source_stays);
    EXPECT_EQ(is_in(*target_, to_, each), expected.arrives);
  }
  EXPECT_EQ(had_room_.value_or(false), is(Transfer::offload));
  ASSERT_EQ(id_.has_value(), expected.reported.has_value());
  if (!id_) {
    EXPECT_EQ(refused_, expected.why);
  } else {
    const TransferStatus status = rig_.manager->transfer(*id_).value();
    EXPECT_EQ(status.state, expected.reported);
    EXPECT_EQ(status.failures.size(), expected.why ? keys_.size() : 0);
    for (const auto& failure : status.failures) EXPECT_EQ(failure.error.code, expected.why);
  }
  rig_.clock.advance_ms(2000);
  rig_.manager->tick();
  expect_nothing_held(*source_);
  if (target_ != source_) expect_nothing_held(*target_);
}

INSTANTIATE_TEST_SUITE_P(, TransferStates, ::testing::ValuesIn(kCases), case_name);

}  // namespace
}  // namespace cairn::testing
