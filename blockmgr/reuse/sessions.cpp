#include "blockmgr/reuse/sessions.hpp"

#include <algorithm>
#include <utility>

namespace cairn {

// Unique per name: the length shows where the token ends.
std::string Sessions::key_of(const Name& name) {
  std::string key = "-";
  if (name.holder != nullptr) key = std::to_string(name.holder->size()) + ':' + *name.holder;
  return key += name.session;
}

void Sessions::add(const Name& name, std::span<const BlockStore::Trail> blocks) {
  if (blocks.empty()) return;
  blocks = blocks.last(std::min(blocks.size(), kMaxBlocksEach));
  std::string key = key_of(name);
  auto known = by_name_.find(key);
  if (known == by_name_.end()) {
    by_use_.push_back({.name = std::move(key), .blocks = {}});
    known = by_name_.emplace(by_use_.back().name, std::prev(by_use_.end())).first;
  }
  Session& session = *known->second;
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

}  // namespace cairn
