#include "blockmgr/core/block_headers.hpp"

#include <string>

#include "blockmgr/core/cache_core.hpp"

namespace cairn {

SlotHeader header_of(CacheLock& locked, SlotRef at, const NewBlock& block) {
  const SlotRecord& slot = locked->store.record(at);
  // The parent of another group follows from the key.
  const bool has_parent = block.parent && block.parent->kv_group == block.key.kv_group;
  return {
      .block = {.key = std::string(block.key.as_text()),
                .parent = has_parent ? std::string(block.parent->as_text()) : "",
                .metadata = block.metadata,
                .expires_at_unix_ms = block.expires_at ? locked.unix_ms_at(*block.expires_at) : 0,
                .epoch = block.epoch,
                .priority = slot.priority,
                .kv_group = block.key.kv_group},
      .place = {.generation = slot.generation, .stamp = slot.last_use.value}};
}

SlotHeader header_of_copy(CacheLock& locked, Copied copy) {
  const BlockStore& store = locked->store;
  const SlotRecord& slot = store.record(copy.source);
  if (slot.gone || slot.life != SlotLife::committed) return {};
  const Entry& entry = store.entry(slot.owner);
  const BlockKey key = store.key(slot.owner);
  std::optional<BlockKey> parent;
  NewBlock block{.key = key, .epoch = store.epoch(slot.owner)};
  if (entry.parent != kNoEntry) {
    parent = store.key(entry.parent);
    block.parent = parent->view();
  }
  block.metadata = store.metadata(slot.owner);
  if (entry.has_ttl) block.expires_at = store.expires_at(slot.owner);
  SlotHeader header = header_of(locked, copy.destination, block);
  header.block.priority = slot.priority;
  return header;
}

}  // namespace cairn
