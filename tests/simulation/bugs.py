"""Plants bugs in copies of the sources, which the simulation must find.

usage: bugs.py list                     names and sources, one per line
       bugs.py plant NAME OUT           the source of NAME with its bug
       bugs.py check                    check that each bug can still be planted
       bugs.py hunt FOLDER [MINUTES]    how long each simulation in FOLDER takes to find its bug

A bug is a list of texts of a source and their replacements. The program itself contains nothing of it.
"""

import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

MOVER = "transport/transfer/slot_transfer.cpp"
MEMORY = "transport/transfer/memory_transfer.cpp"
MOVES = "blockmgr/core/transfers.cpp"
USE = "blockmgr/index/block_store_use.cpp"
STORE = "blockmgr/index/block_store.cpp"

BUGS = {
    "read_skips_the_checksum": (MOVER, [
        ("if (checksum_of(hash, parts_[i]) == job_.slots->checksum(slot)) {",
         "if (checksum_of(hash, parts_[i]) != 0 || job_.slots->checksum(slot) != 0) {")]),
    "failed_copy_forgets_its_pin": (MOVES, [
        ("      ++batch.left;\n  } else {\n    let_source_go(locked, batch, item.source);",
         "      ++batch.left;\n  } else if (!error) {\n    let_source_go(locked, batch, item.source);")]),
    "slot_keeps_its_generation": ("blockmgr/index/slot_pool.cpp", [
        ("SlotRecord{.generation = record.generation + 1}", "SlotRecord{.generation = record.generation}")]),
    "header_is_not_waited_for": (MOVER, [
        ("    submit(DiskCall::Kind::write, [self = shared_from_this()](Result<> written) {\n",
         "    if (job_.operation == JobOperation::write_header) {\n"
         "      submit(DiskCall::Kind::write, [self = shared_from_this()](const Result<>&) {});\n"
         "      return written({});\n"
         "    }\n"
         "    submit(DiskCall::Kind::write, [self = shared_from_this()](Result<> written) {\n")]),
    "retry_moves_the_first_pair_again": (MOVER, [
        ("const BlockPair> pairs() const {\n    return std::span(job_.pairs).subspan(range_.first, range_.count);",
         "const BlockPair> pairs() const {\n    const bool again = range_.count == 1 && part_.pairs.count > 1;\n"
         "    return std::span(job_.pairs).subspan(again ? part_.pairs.first : range_.first, range_.count);")]),
    "read_lets_go_before_its_copy": ("blockmgr/cache/block_reader.cpp", [
        ("  job.pairs = {{at.slot(), 0}};\n", "  job.pairs = {{at.slot(), 0}};\n  unpin();\n"),
        ("    if (pin != Pin::leaving) unpin();\n    if (abandoned)", "    if (abandoned)")]),
    "torn_log_record_is_taken": ("transport/record/block_record.cpp", [
        ("  return hash_bytes(record", "  return seed + 0 * hash_bytes(record")]),
    "parent_goes_before_its_child": (USE, [
        ("  if (details(number).children_in_tier[index_of(tier)] > 0) return true;\n",
         "  if (details(number).children_in_tier[index_of(tier)] > 1) return true;\n")]),
    "unreachable_block_stays": ("blockmgr/index/slot_pool.cpp", [
        ("  if (!cut_off_.empty()) return cut_off_.first;\n", ""),
        ("  return kNoSlot;\n}\n\nstd::uint32_t SlotPool::choose_list",
         "  return cut_off_.first;\n}\n\nstd::uint32_t SlotPool::choose_list")]),
    "copy_is_seen_before_its_bytes": (MEMORY, [
        ("    when_ready(*in_flight_.front().event, part_.mode, executor_, [self",
         "    executor_.post([self"),
        ("    if (auto moved = outcome_of(*oldest.event)) {",
         "    if (auto moved = Result<>()) {")]),
    "staging_is_freed_under_a_write": (MOVER, [
        ("      self->step([&] { self->written(std::move(written)); });\n    });\n",
         "      self->step([&] { self->written(std::move(written)); });\n    });\n    memory_.reset();\n")]),
    "checkpoint_does_not_flush": ("blockmgr/disk_tier/disk_checkpoint.cpp", [
        ("    CAIRN_TRY(flush_slot_file(core.services->scheduler.disk(), core.slots(Tier::disk)));\n", "")]),
    "step_restarts_without_end": ("blockmgr/core/cache_core.cpp", [
        ("  budget_ = state_.steps.size();\n", "  budget_ = core_.options().lock_step;\n")]),
    "dropped_copy_is_not_noted": (STORE, [
        ("  if (at.tier() == Tier::disk) note_disk_slot(at.slot());\n  if (slot.pins == 0) free_slot(at);",
         "  if (slot.pins == 0) free_slot(at);")]),
    "lease_ends_under_a_commit": ("blockmgr/cache/cache_commit.cpp", [
        ("    locked->store.pin(slots_[marked_]);\n", ""),
        ("    locked->store.record(at).committing = false;\n    locked->store.unpin(at);\n",
         "    locked->store.record(at).committing = false;\n")]),
    "groups_are_copied_together": (MOVES, [
        ("source.tier() == first.tier() && locked->store.kv_group(source) == items.kv_group;",
         "source.tier() == first.tier();")]),
    "windows_do_not_count": ("blockmgr/index/group_search.cpp", [
        ("      case KvGroupKind::window:\n        for (std::uint64_t run = first_run_of_window(group, n);",
         "      case KvGroupKind::window:\n        for (std::uint64_t run = 1 + first_run_of_window(group, n);")]),
    "moved_block_loses_its_end": ("blockmgr/core/resizing.cpp", [
        ("job.source = job.destination = &core.layout(tier, kv_group);",
         "job.source = job.destination = &core.slots(tier);")]),
    "pin_ends_early": ("blockmgr/core/pins.cpp", [
        ("milliseconds(pin.terms.ttl_ms);\n  pin.is_listed", "milliseconds((pin.terms.ttl_ms + 1) / 2);\n  pin.is_listed")]),
    "prefetch_brings_back_an_erased_key": (MOVES, [
        ("  if (!vanished && locked->store.entry(key).slots[index_of(batch.to)] == kNoSlot) {",
         "  if (vanished && batch.is_prefetch) {\n"
         "    locked->store.commit(item.destination, {.key = batch.keys[index]});\n"
         "  } else if (!vanished && locked->store.entry(key).slots[index_of(batch.to)] == kNoSlot) {")]),
    "pinned_block_may_leave": (USE, [
        ("    const bool may_go = slots[slot].pins == 0 && !slots[slot].is_protected;",
         "    const bool may_go = slots[slot].pins == 0;"),
        ("    if (record.place == EvictionPlace::parked && record.pins == 0 && !record.is_protected &&",
         "    if (record.place == EvictionPlace::parked && record.pins == 0 &&")]),
    "shared_block_is_not_stored": ("blockmgr/remote_tier/remote_tier.cpp", [
        ("      remember(hash);\n      waiting_.push_back({.key = key, .parent = parent});\n",
         "      remember(hash);\n"
         "      if (waiting_.empty()) waiting_.push_back({.key = key, .parent = parent});\n")]),
    "fetched_value_is_not_checked": ("blockmgr/remote_tier/remote_fetch.cpp", [
        ("read.block.checksum != checksum_of(item.room)", "read.block.checksum == 0")]),
    "upload_lets_go_of_its_block": ("blockmgr/remote_tier/remote_upload.cpp", [
        ("      from.insert(from.end(), bytes.begin(), bytes.end());\n",
         "      from.insert(from.end(), bytes.begin(), bytes.end());\n      upload_.reader.reset();\n")]),
    "encoded_block_is_decoded_in_its_place": ("transport/record/medium_codec.cpp", [
        ("  return decode({encoded.get(), encoded_bytes}, plain);\n",
         "  return decode({static_cast<const std::byte*>(plain[0].iov_base), encoded_bytes}, plain);\n")]),
    "hole_is_made_in_a_slot_of_others": ("blockmgr/core/hole_punch.cpp", [
        ("  under_way_ = true;\n",
         "  under_way_ = true;\n  for (const SlotTail& slot : *slots) locked->store.unpin({Tier::disk, slot.slot});\n"),
        ("  for (const SlotTail& slot : slots) locked->store.unpin({Tier::disk, slot.slot});\n",
         "  static_cast<void>(slots);\n")]),
    "state_outlives_its_full_block": (STORE, [
        ("      block.parent = block.key.in(options_.full_group);\n", "      block.parent.reset();\n")]),
}


def planted(name):
    """The source with its bug. Exits if a text is not found exactly once."""
    source, texts = BUGS[name]
    with open(os.path.join(ROOT, source), encoding="utf-8") as file:
        text = file.read()
    for old, new in texts:
        if text.count(old) != 1:
            sys.exit(f"{name}: {source} has {text.count(old)} times, not once:\n{old}")
        text = text.replace(old, new)
    return text


def hunt(folder, minutes):
    missed = []
    for name, (source, _) in BUGS.items():
        said = subprocess.run([os.path.join(folder, f"simulation_bug_{name}"), "--minutes", minutes],
                              text=True, stdout=subprocess.PIPE).stdout
        found = re.search(r"found after (\d+) steps, (\d+) s", said)
        finding = re.search(r"step \d+: (.*)", said)
        shrunk = re.search(r"with (\d+) steps", said)
        if found:
            print(f"| {name} | `{source}` | {found[1]} | {found[2]} | {shrunk[1] if shrunk else ''} | "
                  f"{finding[1] if finding else ''} |", flush=True)
        else:
            missed.append(name)
            print(f"| {name} | `{source}` | not found | | | {said.strip()} |", flush=True)
    return 1 if missed else 0


def main():
    match sys.argv[1:]:
        case ["list"]:
            print("\n".join(f"{name} {source}" for name, (source, _) in BUGS.items()))
        case ["plant", name, out]:
            with open(out, "w", encoding="utf-8") as file:
                file.write(planted(name))
        case ["check"]:
            for name in BUGS:
                planted(name)
        case ["hunt", folder]:
            return hunt(folder, "5")
        case ["hunt", folder, minutes]:
            return hunt(folder, minutes)
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
