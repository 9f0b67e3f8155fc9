#include "blockmgr/reuse/sessions.hpp"

#include <algorithm>
#include <utility>

namespace cairn {

namespace {

// The part of a key before the session. The length shows where the token ends.
std::string prefix_of(const LeaseHolder& holder) {
  return holder == nullptr ? "-" : std::to_string(holder->size()) + ':' + *holder;
}

}  // namespace

// Unique per name.
std::string Sessions::key_of(const Name& name) {
  return prefix_of(name.holder).append(name.session);
}

void Sessions::add(const Name& name, Use use) {
  if (use.blocks.empty()) return;
  const auto blocks = use.blocks.last(std::min(use.blocks.size(), kMaxBlocksEach));
  std::string key = key_of(name);
  auto known = by_name_.find(key);
  if (known == by_name_.end()) {
    by_use_.push_back({.name = std::move(key), .holder = name.holder, .blocks = {}});
    known = by_name_.emplace(by_use_.back().name, std::prev(by_use_.end())).first;
  }
  Session& session = *known->second;
  session.last_use_unix_ms = use.unix_ms;
  by_use_.splice(by_use_.end(), by_use_, known->second);
  // The blocks usually continue the known ones: a prompt from its first block, or the blocks stored
  // after it.
  auto& all = session.blocks;
  const auto begins = std::ranges::find(all, blocks.front());
  const auto differs = std::ranges::mismatch(begins, all.end(), blocks.begin(), blocks.end()).in2;
  blocks_ -= all.size();
  all.insert(all.end(), differs, blocks.end());
  if (all.size() > kMaxBlocksEach) {
    all.erase(all.begin(), all.end() - static_cast<std::ptrdiff_t>(kMaxBlocksEach));
  }
  blocks_ += all.size();
  while (by_use_.size() > kMaxSessions || blocks_ > kMaxBlocks) forget_oldest();
}

void Sessions::forget_oldest() {
  blocks_ -= by_use_.front().blocks.size();
  by_name_.erase(by_use_.front().name);
  by_use_.pop_front();
}

std::span<const BlockStore::Trail> Sessions::find(const Name& name) {
  const auto known = by_name_.find(key_of(name));
  if (known == by_name_.end()) return {};
  by_use_.splice(by_use_.end(), by_use_, known->second);
  return known->second->blocks;
}

std::span<const BlockStore::Trail> Sessions::peek(const Name& name) const {
  const auto known = by_name_.find(key_of(name));
  if (known == by_name_.end()) return {};
  return known->second->blocks;
}

std::vector<Sessions::Known> Sessions::latest(const std::optional<std::string>& holder,
                                              std::size_t limit) const {
  std::vector<Known> all;
  std::size_t looked_at = 0;
  for (auto at = by_use_.rbegin(); at != by_use_.rend() && looked_at < kMaxLookedAt; ++at) {
    if (all.size() == limit) break;
    ++looked_at;
    if (holder && (at->holder == nullptr || *at->holder != *holder)) continue;
    all.push_back({.holder = at->holder,
                   .session = at->name.substr(prefix_of(at->holder).size()),
                   .last_use_unix_ms = at->last_use_unix_ms});
  }
  return all;
}

}  // namespace cairn
