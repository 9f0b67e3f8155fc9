#include "replay/group_frontend.hpp"

#include <algorithm>
#include <utility>

#include "base/hex.hpp"

namespace cairn::replay {
namespace {

using client::KeyList;

// Calls `take` with each run of blocks of one group, at most `most_bytes` of them at a time, or
// one block. Stops when it returns false.
template <class Take>
bool by_group(const KvModel& model, std::span<const UsedBlock> blocks, std::size_t most_bytes,
              Take&& take) {
  while (!blocks.empty()) {
    const std::uint32_t group = blocks.front().group;
    const std::size_t most =
        std::max<std::size_t>(most_bytes / model.groups[group].block_bytes(), 1);
    std::size_t count = 0;
    while (count < std::min(most, blocks.size()) && blocks[count].group == group) ++count;
    if (!take(blocks.first(count))) return false;
    blocks = blocks.subspan(count);
  }
  return true;
}

// Group by group, as the server lists them.
void sort_by_group(std::vector<UsedBlock>& blocks) {
  sort_blocks(blocks);
  std::ranges::stable_sort(blocks, {}, &UsedBlock::group);
}

}  // namespace

GroupFrontend::GroupFrontend(Frontend::Config config, const KeyMaker& keys)
    : config_(std::move(config)),
      model_(*config_.target.kv_model),
      use_(model_.use()),
      key_maker_(keys),
      client_(config_.server, config_.http),
      calls_({.pause = config_.pause, .report = config_.report, .engine = config_.engine}),
      tally_(calls_.tally()) {}

std::span<const std::byte> GroupFrontend::key(std::uint32_t index) const {
  return KeyList(keys_, kKeyBytes)[index];
}

std::vector<std::byte> GroupFrontend::keys_of(Blocks blocks) const {
  std::vector<std::byte> keys;
  for (const UsedBlock& block : blocks) {
    const auto bytes = key(block.key);
    keys.insert(keys.end(), bytes.begin(), bytes.end());
  }
  return keys;
}

// The key of the block before it in its group.
std::span<const std::byte> GroupFrontend::parent_of(const UsedBlock& block) const {
  const std::uint32_t per_block = use_.groups()[block.group].keys_per_block;
  const std::uint32_t first_key = block.key / per_block * per_block;
  return first_key == 0 ? std::span<const std::byte>() : key(first_key - 1);
}

// Other bytes for the same key in another group.
BlockPattern GroupFrontend::pattern_of(const UsedBlock& block) const {
  const auto bytes = key(block.key);
  std::vector<std::byte> named(bytes.begin(), bytes.end());
  named.push_back(static_cast<std::byte>(block.group));
  return BlockPattern(named);
}

bool GroupFrontend::run(const PromptRequest& request) {
  calls_.begin_request();
  keys_.clear();
  for (const std::uint64_t id : request.hash_ids) {
    const BlockKey key = key_maker_.key_of(id);
    keys_.insert(keys_.end(), key.begin(), key.end());
  }
  const auto count = static_cast<std::uint32_t>(request.hash_ids.size());
  if (count == 0) {
    ++tally_.requests;
    return true;
  }
  auto match = calls_.tried(Step::match, [&] {
    return client_.match_groups(config_.target.name, KeyList(keys_, kKeyBytes), config_.lease_ms);
  });
  if (!match) {
    ++tally_.requests_failed;
    calls_.failed(Step::match, match.error());
    return calls_.server_answers();
  }
  tally_.blocks_asked += count;
  tally_.matched += match->matched;
  tally_.full_matched += match->full_matched;
  tally_.misses += count - match->matched;
  for (const auto& block : match->blocks) {
    ++tally_.hits[static_cast<std::size_t>(block.handle.tier)];
  }
  if (lists_what_it_needs(*match)) {
    std::vector<UsedBlock> needed;
    use_.add_full(static_cast<std::uint32_t>(match->matched), needed);
    use_.add_tail(static_cast<std::uint32_t>(match->matched), needed);
    sort_by_group(needed);
    read(needed);
    calls_.loaded(request, {.blocks = needed.size(), .keys = match->matched});
  }
  const std::uint64_t filled = request.input_tokens / model_.block_tokens;
  store({.keys = count,
         .filled_keys = request.input_tokens > 0
                            ? static_cast<std::uint32_t>(std::min<std::uint64_t>(filled, count))
                            : count,
         .matched = static_cast<std::uint32_t>(match->matched),
         .full_matched = static_cast<std::uint32_t>(match->full_matched)});
  if (!match->lease.empty()) leases_.push_back(std::move(match->lease));
  release(request);
  ++tally_.requests;
  return calls_.server_answers();
}

bool GroupFrontend::lists_what_it_needs(const client::GroupMatch& match) {
  const auto count = static_cast<std::uint32_t>(keys_.size() / kKeyBytes);
  const auto wrong = [&](const std::string& why) {
    calls_.failed(Step::match, {0, client::kBadAnswer, why});
    return false;
  };
  if (match.matched > match.full_matched || match.full_matched > count) {
    return wrong("matched is " + std::to_string(match.matched) + ", full_matched " +
                 std::to_string(match.full_matched) + " of " + std::to_string(count));
  }
  const auto matched = static_cast<std::uint32_t>(match.matched);
  if (use_.storable(matched) != matched) {
    return wrong("matched is " + std::to_string(matched) + ", inside a window's block");
  }
  std::vector<UsedBlock> needed;
  use_.add_full(matched, needed);
  use_.add_tail(matched, needed);
  sort_by_group(needed);
  bool same = needed.size() == match.blocks.size();
  for (std::size_t i = 0; same && i < needed.size(); ++i) {
    same = match.blocks[i].handle.kv_group == group(needed[i].group).name &&
           match.blocks[i].key == to_hex(key(needed[i].key));
  }
  if (same) return true;
  return wrong("a match of " + std::to_string(matched) + " keys lists " +
               std::to_string(match.blocks.size()) + " blocks, which are not the " +
               std::to_string(needed.size()) + " that it needs");
}

void GroupFrontend::read(Blocks blocks) {
  by_group(model_, blocks, Frontend::kBufferBytes, [this](Blocks some) { return read_some(some); });
}

bool GroupFrontend::read_some(Blocks blocks) {
  const std::string& name = group(blocks.front().group).name;
  const std::size_t block_bytes = group(blocks.front().group).block_bytes();
  buffer_.resize(blocks.size() * block_bytes);
  std::size_t there = 0;
  if (config_.read_mode == ReadMode::read) {
    const std::vector<std::byte> keys = keys_of(blocks);
    auto count = calls_.tried(Step::read, [&] {
      return client_.read(config_.target.name, KeyList(keys, kKeyBytes), buffer_, name);
    });
    if (!count) {
      calls_.failed(Step::read, count.error());
      return false;
    }
    there = *count;
  } else {
    for (; there < blocks.size(); ++there) {
      const auto room = std::span(buffer_).subspan(there * block_bytes, block_bytes);
      auto tier = calls_.tried(Step::read, [&] {
        return client_.get_key(config_.target.name, key(blocks[there].key), room, name);
      });
      if (tier) continue;
      if (tier.error().status == 404) break;
      calls_.failed(Step::read, tier.error());
      return false;
    }
  }
  compare(blocks.first(there));
  if (there == blocks.size()) return true;
  tally_.leased_missing += blocks.size() - there;
  calls_.report("read: only " + std::to_string(there) + " of " + std::to_string(blocks.size()) +
                " leased blocks of " + name + " were there");
  return false;
}

void GroupFrontend::compare(Blocks blocks) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::size_t block_bytes = group(blocks[i].group).block_bytes();
    const auto bytes = std::span<const std::byte>(buffer_).subspan(i * block_bytes, block_bytes);
    tally_.bytes_read += block_bytes;
    ++tally_.blocks_read;
    const Mismatch mismatch = pattern_of(blocks[i]).compare(bytes);
    if (mismatch.wrong_bytes == 0) continue;
    ++tally_.wrong_blocks;
    tally_.wrong_bytes += mismatch.wrong_bytes;
    calls_.report("read: WRONG BYTES: " + std::to_string(mismatch.wrong_bytes) +
                  " of the block of " + group(blocks[i].group).name + " under key " +
                  std::to_string(blocks[i].key) + " of its prompt, the first at byte " +
                  std::to_string(mismatch.first_offset_bytes) +
                  (mismatch.other_keys_block ? ": it is another block" : ""));
  }
}

std::vector<UsedBlock> GroupFrontend::stored_by(const GroupUse::Prompt& prompt) const {
  std::vector<UsedBlock> stored = use_.stored(prompt, GroupUse::Tails::partings);
  sort_by_group(stored);
  return stored;
}

// A prompt can have more blocks than the tier, and other connections hold some of it. If not all
// can be stored, half as many keys are, with the tail at their end.
void GroupFrontend::store(GroupUse::Prompt prompt) {
  const std::size_t wanted = stored_by(prompt).size();
  std::size_t left = wanted;
  for (int tries = 0; left > 0;) {
    const std::vector<UsedBlock> blocks = stored_by(prompt);
    if (blocks.empty()) break;
    const Stored stored =
        config_.store_mode == StoreMode::slots ? store_slots(blocks) : store_written(blocks);
    if (stored == Stored::yes) left = wanted - std::min(wanted, blocks.size());
    if (stored != Stored::no_room) break;
    const std::uint32_t half = (prompt.full_matched + prompt.keys) / 2;
    if (half > prompt.full_matched) {
      prompt.keys = half;
      prompt.filled_keys = std::min(prompt.filled_keys, half);
      continue;
    }
    if (++tries == StepCalls::kTries) break;
    ++tally_.retries;
    calls_.pause(std::chrono::milliseconds(1 << tries));
  }
  tally_.not_stored += left;
}

GroupFrontend::Stored GroupFrontend::given_up(Step step, const client::ClientError& error) {
  if (!StepCalls::is_busy(error)) calls_.failed(step, error);
  return Stored::failed;
}

GroupFrontend::Stored GroupFrontend::store_slots(Blocks blocks) {
  const std::string& cache = config_.target.name;
  client::AllocateRequest request{.tier = config_.target.store_tier, .lease_ms = config_.lease_ms};
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::string& name = group(blocks[i].group).name;
    if (i == 0 || blocks[i].group != blocks[i - 1].group)
      request.group_counts.emplace_back(name, 0);
    ++request.group_counts.back().second;
  }
  auto allocation = calls_.tried(Step::allocate, [&] { return client_.allocate(cache, request); });
  if (!allocation && StepCalls::has_no_room(allocation.error())) return Stored::no_room;
  if (!allocation) return given_up(Step::allocate, allocation.error());
  leases_.push_back(allocation->lease);
  if (allocation->blocks.size() != blocks.size()) {
    calls_.failed(Step::allocate,
                  {0, client::kBadAnswer, "another number of blocks than asked for"});
    return Stored::failed;
  }
  std::vector<client::CommitBlock> commits;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const client::BlockHandle& handle = allocation->blocks[i];
    buffer_.resize(group(blocks[i].group).block_bytes());
    pattern_of(blocks[i]).fill(buffer_);
    auto written = calls_.tried(
        Step::write, [&] { return client_.write_slot(cache, handle, allocation->lease, buffer_); });
    if (!written) return given_up(Step::write, written.error());
    tally_.bytes_written += buffer_.size();
    commits.push_back({handle, key(blocks[i].key), parent_of(blocks[i])});
  }
  auto statuses =
      calls_.tried(Step::commit, [&] { return client_.commit(cache, allocation->lease, commits); });
  if (!statuses) return given_up(Step::commit, statuses.error());
  count_statuses(*statuses);
  return Stored::yes;
}

GroupFrontend::Stored GroupFrontend::store_written(Blocks blocks) {
  Stored stored = Stored::yes;
  by_group(model_, blocks, Frontend::kBufferBytes, [&](Blocks some) {
    stored = write_some(some);
    return stored == Stored::yes;
  });
  return stored;
}

GroupFrontend::Stored GroupFrontend::write_some(Blocks blocks) {
  const std::size_t block_bytes = group(blocks.front().group).block_bytes();
  buffer_.resize(blocks.size() * block_bytes);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    pattern_of(blocks[i]).fill(std::span(buffer_).subspan(i * block_bytes, block_bytes));
  }
  const std::vector<std::byte> keys = keys_of(blocks);
  auto statuses = calls_.tried(Step::write, [&] {
    return client_.write(config_.target.name, {.keys = KeyList(keys, kKeyBytes),
                                               .parent = parent_of(blocks.front()),
                                               .tier = config_.target.store_tier,
                                               .blocks = buffer_,
                                               .kv_group = group(blocks.front().group).name});
  });
  if (!statuses && StepCalls::has_no_room(statuses.error())) return Stored::no_room;
  if (!statuses) return given_up(Step::write, statuses.error());
  tally_.bytes_written += buffer_.size();
  count_statuses(*statuses);
  return Stored::yes;
}

void GroupFrontend::count_statuses(std::span<const client::StoreStatus> statuses) {
  const auto duplicates = static_cast<std::uint64_t>(
      std::count(statuses.begin(), statuses.end(), client::StoreStatus::duplicate));
  tally_.duplicates += duplicates;
  tally_.stored += statuses.size() - duplicates;
}

void GroupFrontend::release(const PromptRequest& request) {
  const auto end = end_of(request);
  for (const std::string& lease : leases_) {
    auto released = calls_.tried(Step::release, [&] {
      return end ? client_.end_request(lease, *end) : client_.end_lease(lease);
    });
    if (!released) calls_.failed(Step::release, released.error());
  }
  leases_.clear();
}

}  // namespace cairn::replay
