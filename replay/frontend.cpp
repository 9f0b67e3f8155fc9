#include "replay/frontend.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/assert.hpp"
#include "replay/replay_blocks.hpp"

namespace cairn::replay {
namespace {

using client::Answer;
using client::ClientError;
using client::KeyList;
using client::StoreStatus;

constexpr std::uint64_t kLoadWaitMs = 60'000;  // the longest that a server takes

constexpr auto is_busy = StepCalls::is_busy;
constexpr auto has_no_room = StepCalls::has_no_room;

}  // namespace

std::optional<client::CacheClient::RequestEnd> end_of(const PromptRequest& request) {
  if (request.input_tokens == 0 && !request.hint) return std::nullopt;
  client::CacheClient::RequestEnd end;
  if (request.input_tokens > 0) {
    end.input_tokens = request.input_tokens;
    end.output_tokens = request.output_tokens;
  }
  switch (request.hint.kind) {
    case ReuseHint::Kind::none:
      break;
    case ReuseHint::Kind::never:
      end.reuse = "never";
      break;
    case ReuseHint::Kind::soon:
      end.reuse = "soon";
      break;
    case ReuseHint::Kind::later:
      end.reuse = "later";
      break;
    case ReuseHint::Kind::within:
      end.within_ms = request.hint.within_ms;
      break;
  }
  return end;
}

Frontend::Frontend(Config config, const KeyMaker& keys)
    : config_(std::move(config)),
      key_maker_(keys),
      client_(config_.server, config_.http),
      calls_({.pause = config_.pause, .report = config_.report, .engine = config_.engine}),
      tally_(calls_.tally()) {}

KeyList Frontend::keys_of(Range range) const {
  return KeyList(keys_, kKeyBytes).part(range.first, range.count);
}

std::span<const std::byte> Frontend::parent_of(std::size_t index) const {
  if (index == 0) return {};
  return KeyList(keys_, kKeyBytes)[index - 1];
}

std::span<std::byte> Frontend::buffer_for(std::size_t blocks) {
  const std::size_t bytes = blocks * config_.target.block_bytes;
  if (buffer_.size() < bytes) buffer_.resize(bytes);
  return std::span(buffer_).first(bytes);
}

std::size_t Frontend::blocks_at_once() const {
  return std::max<std::size_t>(kBufferBytes / config_.target.block_bytes, 1);
}

bool Frontend::run(const PromptRequest& request) {
  calls_.begin_request();
  keys_.clear();
  for (const std::uint64_t id : request.hash_ids) {
    const BlockKey key = key_maker_.key_of(id);
    keys_.insert(keys_.end(), key.begin(), key.end());
  }
  const Range all{0, request.hash_ids.size()};
  if (all.count == 0) {
    ++tally_.requests;
    return true;
  }
  auto match = tried(Step::match, [&] {
    return client_.match(config_.target.name, keys_of(all), config_.lease_ms);
  });
  if (!match) {
    ++tally_.requests_failed;
    failed(Step::match, match.error());
    return calls_.server_answers();
  }
  const std::size_t hits = std::min(match->blocks.size(), all.count);
  tally_.blocks_asked += all.count;
  for (const client::BlockHandle& block : match->blocks) {
    ++tally_.hits[static_cast<std::size_t>(block.tier)];
  }
  tally_.matched += hits;
  tally_.misses += all.count - hits;
  read_hits(hits);
  calls_.loaded(request, {.blocks = hits, .keys = hits});
  store_misses({hits, all.count - hits});
  if (!match->lease.empty()) stored_leases_.push_back(std::move(match->lease));
  release(stored_leases_, end_of(request));
  ++tally_.requests;
  return calls_.server_answers();
}

void Frontend::read_hits(std::size_t count) {
  std::size_t at_once = blocks_at_once();
  if (config_.read_mode == ReadMode::load && count > 0) {
    if (area_ == nullptr) {
      auto area = EngineArea::registered(client_, config_.target);
      if (!area) return failed(Step::read, area.error());
      area_ = std::move(*area);
    }
    at_once = area_->max_blocks();
  }
  for (std::size_t first = 0; first < count; first += at_once) {
    const Range range{first, std::min(at_once, count - first)};
    if (!read(range)) return;
  }
}

bool Frontend::read(Range range) {
  switch (config_.read_mode) {
    case ReadMode::read:
      return read_range(range);
    case ReadMode::keys:
      return read_one_by_one(range);
    case ReadMode::load:
      return read_into_engine(range);
  }
  invariant_broken("ReadMode", "a value outside the enumeration");
}

bool Frontend::read_into_engine(Range range) {
  auto loaded =
      tried(Step::read, [&] { return area_->load(client_, keys_of(range), kLoadWaitMs); });
  if (!loaded) {
    failed(Step::read, loaded.error());
    return false;
  }
  compare(range, *loaded);
  return true;
}

bool Frontend::read_range(Range range) {
  const std::span<std::byte> room = buffer_for(range.count);
  auto count =
      tried(Step::read, [&] { return client_.read(config_.target.name, keys_of(range), room); });
  if (!count) {
    failed(Step::read, count.error());
    return false;
  }
  compare({range.first, *count}, room);
  if (*count == range.count) return true;
  tally_.leased_missing += range.count - *count;
  config_.report("read: only " + std::to_string(*count) + " of " + std::to_string(range.count) +
                 " leased blocks were there");
  return false;
}

bool Frontend::read_one_by_one(Range range) {
  const std::span<std::byte> room = buffer_for(range.count);
  const KeyList keys = keys_of(range);
  for (std::size_t i = 0; i < range.count; ++i) {
    auto tier = tried(Step::read, [&] {
      return client_.get_key(
          config_.target.name, keys[i],
          room.subspan(i * config_.target.block_bytes, config_.target.block_bytes));
    });
    if (!tier) {
      if (tier.error().status == 404) ++tally_.leased_missing;
      failed(Step::read, tier.error());
      compare({range.first, i}, room);
      return false;
    }
  }
  compare(range, room);
  return true;
}

void Frontend::compare(Range range, std::span<const std::byte> read) {
  const KeyList keys = keys_of(range);
  for (std::size_t i = 0; i < range.count; ++i) {
    const auto block = read.subspan(i * config_.target.block_bytes, config_.target.block_bytes);
    const Mismatch mismatch = BlockPattern(keys[i]).compare(block);
    if (mismatch.wrong_bytes == 0) continue;
    ++tally_.wrong_blocks;
    tally_.wrong_bytes += mismatch.wrong_bytes;
    config_.report("read: WRONG BYTES: " + std::to_string(mismatch.wrong_bytes) + " of block " +
                   std::to_string(range.first + i) + " of its prompt, the first at byte " +
                   std::to_string(mismatch.first_offset_bytes) +
                   (mismatch.other_keys_block ? ": it is another key's block" : ""));
  }
  tally_.blocks_read += range.count;
  tally_.bytes_read += range.count * config_.target.block_bytes;
}

// A prompt can have more blocks than the tier, and other connections hold some of it. Blocks that
// cannot be stored at once are stored in smaller runs, always the next of the prefix, so that each
// can be matched through the earlier ones.
void Frontend::store_misses(Range misses) {
  std::size_t chunk = std::max<std::size_t>(config_.target.store_tier_blocks, 1);
  if (config_.store_mode == StoreMode::write) chunk = std::min(chunk, blocks_at_once());
  int tries = 0;
  while (misses.count > 0) {
    const Range next{misses.first, std::min(chunk, misses.count)};
    const Stored stored = store(next);
    if (stored == Stored::yes) {
      misses = {next.first + next.count, misses.count - next.count};
      tries = 0;
      continue;
    }
    if (stored == Stored::failed) break;
    if (!stored_leases_.empty()) {
      // Blocks that this request has stored may move to a lower tier to make room for the rest of
      // it.
      release(stored_leases_);
    } else if (next.count > 1) {
      chunk = next.count / 2;
    } else if (++tries == kTries) {
      break;
    } else {
      ++tally_.retries;
      calls_.pause(std::chrono::milliseconds(1 << tries));
    }
  }
  tally_.not_stored += misses.count;
}

Frontend::Stored Frontend::store(Range range) {
  return config_.store_mode == StoreMode::slots ? store_slots(range) : store_written(range);
}

Frontend::Stored Frontend::given_up(Step step, const ClientError& error) {
  if (!is_busy(error)) failed(step, error);
  return Stored::failed;
}

Frontend::Stored Frontend::store_slots(Range range) {
  const std::string& cache = config_.target.name;
  auto allocation = tried(Step::allocate, [&] {
    return client_.allocate(
        cache,
        {.count = range.count, .tier = config_.target.store_tier, .lease_ms = config_.lease_ms});
  });
  if (!allocation && has_no_room(allocation.error())) return Stored::no_room;
  if (!allocation) return given_up(Step::allocate, allocation.error());
  stored_leases_.push_back(allocation->lease);
  if (allocation->blocks.size() != range.count) {
    failed(Step::allocate, {0, client::kBadAnswer, "another number of blocks than asked for"});
    return Stored::failed;
  }
  const KeyList keys = keys_of(range);
  const std::span<std::byte> block = buffer_for(1);
  std::vector<client::CommitBlock> commits;
  commits.reserve(range.count);
  for (std::size_t i = 0; i < range.count; ++i) {
    const client::BlockHandle& handle = allocation->blocks[i];
    BlockPattern(keys[i]).fill(block);
    auto written = tried(
        Step::write, [&] { return client_.write_slot(cache, handle, allocation->lease, block); });
    if (!written) return given_up(Step::write, written.error());
    tally_.bytes_written += block.size();
    commits.push_back({handle, keys[i], parent_of(range.first + i)});
  }
  auto statuses =
      tried(Step::commit, [&] { return client_.commit(cache, allocation->lease, commits); });
  if (!statuses) return given_up(Step::commit, statuses.error());
  count_statuses(*statuses);
  return Stored::yes;
}

Frontend::Stored Frontend::store_written(Range range) {
  const KeyList keys = keys_of(range);
  const std::span<std::byte> blocks = buffer_for(range.count);
  const std::size_t block_bytes = config_.target.block_bytes;
  for (std::size_t i = 0; i < range.count; ++i) {
    BlockPattern(keys[i]).fill(blocks.subspan(i * block_bytes, block_bytes));
  }
  auto statuses = tried(Step::write, [&] {
    return client_.write(config_.target.name, {.keys = keys,
                                               .parent = parent_of(range.first),
                                               .tier = config_.target.store_tier,
                                               .blocks = blocks});
  });
  if (!statuses && has_no_room(statuses.error())) return Stored::no_room;
  if (!statuses) return given_up(Step::write, statuses.error());
  tally_.bytes_written += blocks.size();
  count_statuses(*statuses);
  return Stored::yes;
}

void Frontend::count_statuses(std::span<const StoreStatus> statuses) {
  const auto duplicates = static_cast<std::uint64_t>(
      std::count(statuses.begin(), statuses.end(), StoreStatus::duplicate));
  tally_.duplicates += duplicates;
  tally_.stored += statuses.size() - duplicates;
}

void Frontend::release(std::vector<std::string>& leases, const std::optional<RequestEnd>& end) {
  for (const std::string& lease : leases) {
    auto released = tried(Step::release, [&] {
      return end ? client_.end_request(lease, *end) : client_.end_lease(lease);
    });
    if (!released) failed(Step::release, released.error());
  }
  leases.clear();
}

}  // namespace cairn::replay
