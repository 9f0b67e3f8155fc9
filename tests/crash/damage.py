"""Does to a disk tier's files what a crash, a power cut or a bad disk does, while no server uses them."""

import os
import struct

from ledger import BLOCK_BYTES

PAGE = 4096
SECTOR = 512
LABEL_BYTES = 2 * PAGE  # before the slots of a file
SLOT_BYTES = PAGE + -(-BLOCK_BYTES // PAGE) * PAGE  # a header, and a block rounded up to pages
FLUSHED = 0x80000000
LOG_BOOT = 72  # offset in a log: the machine's boot that it belongs to


def slot_file(folder, cache):
    return folder / "data" / "disk" / cache


def index_of(slots):
    return slots.with_name(slots.name + "~index")


def logs_of(slots):
    """The logs of a cache's index, by number."""
    prefix = slots.name + "~log."
    return {int(path.name[len(prefix):]): path for path in slots.parent.glob(prefix + "*")}


def checkpoint_number(slots):
    """The first log that counts besides the last finished checkpoint; 0 if there is none."""
    try:
        with open(index_of(slots), "rb") as index:
            return struct.unpack_from("<Q", index.read(80), 48)[0]
    except (FileNotFoundError, struct.error):
        return 0


def flip_bit(path, offset, random):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << random.randrange(8)]))


def damage_block(slots, slot, random):
    """Flips a bit, zeroes a sector (never written), or copies a sector from another place (misdirected write). The
    bytes always change."""
    begin = LABEL_BYTES + slot * SLOT_BYTES + PAGE
    with open(slots, "r+b") as file:
        file.seek(begin)
        size = len(file.read(BLOCK_BYTES).rstrip(b"\0"))  # a codec may have made it shorter
        sector = begin + random.randrange(-(-size // SECTOR)) * SECTOR
        kind = random.choice(["flipped", "zeros", "misdirected"])
        if kind == "flipped":
            flip_bit(slots, random.randrange(begin, begin + size), random)
        else:
            file.seek(begin - PAGE)  # the block's own header
            other = bytes(SECTOR) if kind == "zeros" else file.read(SECTOR)
            file.seek(sector)
            file.write(other)
    return kind


def damage_index(slots, random):
    """Deletes a checkpoint or log of a cache's index, truncates it or flips a bit in it. Returns what was done."""
    logs = logs_of(slots)
    victims = [path for path in (index_of(slots), *logs.values()) if path.exists()]
    victim = random.choice(victims)
    kind = random.choice(["gone", "cut", "flipped"])
    if kind == "gone":
        victim.unlink()
    elif kind == "cut":
        os.truncate(victim, random.randrange(victim.stat().st_size))
    else:
        # In the used part: what follows a log's last record is not read.
        used = len(victim.read_bytes().rstrip(b"\0"))
        flip_bit(victim, random.randrange(max(used, 1)), random)
    return f"{victim.name} {kind}"


def undo_records(path):
    """The calls in their order: (file, offset, previous bytes) for a write, (file, None, None) for a flush."""
    with open(path, "rb") as undo:
        while True:
            head = undo.read(16)
            if len(head) < 16:
                return
            length, size, offset = struct.unpack("<IIQ", head)
            name = undo.read(length & ~FLUSHED)
            if length & FLUSHED:
                yield name, None, None
                continue
            data = undo.read(size)
            if len(data) < size:
                return  # the server was killed before the write
            yield name, offset, data


def cut_power(undo, slot_files, random):
    """Each page written since the last flush of its file keeps its content or goes back to that before any of its
    last writes. If a log was never flushed, each of its pages may or may not have reached the disk."""
    before = {}  # (file, offset of a page): its content before each write since the flush
    for name, offset, data in undo_records(undo):
        if offset is None:
            before = {at: kept for at, kept in before.items() if at[0] != name}
            continue
        for skip in range(0, len(data), PAGE):
            before.setdefault((name, offset + skip), []).append(data[skip:skip + PAGE])
    lost = 0
    for (name, offset), versions in before.items():
        back = random.randint(0, len(versions))
        if back == 0:
            continue
        with open(os.fsdecode(name), "r+b") as file:
            file.seek(offset)
            file.write(versions[-back])
        lost += 1
    for slots in slot_files:
        for path in logs_of(slots).values():
            chance = random.choice([0, 0.2, 1])  # the probability that a page is lost
            with open(path, "r+b") as log:
                used = len(log.read().rstrip(b"\0"))
                if used:  # the log was begun before the machine was restarted
                    log.seek(LOG_BOOT)
                    log.write(random.randbytes(8))
                for offset in range(0, used, PAGE):
                    if random.random() < chance:
                        log.seek(offset)
                        log.write(bytes(PAGE))
                        lost += 1
    return lost
