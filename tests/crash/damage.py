"""What a crash, a power cut or a bad disk does to the files of a disk tier while no server has them."""

import os
import struct

from ledger import BLOCK_BYTES

PAGE = 4096
SECTOR = 512
LABEL_BYTES = 2 * PAGE  # in front of the slots of a file
SLOT_BYTES = PAGE + -(-BLOCK_BYTES // PAGE) * PAGE  # a header, a block in whole pages
FLUSHED = 0x80000000
LOG_BOOT = 72  # in a log: of which start of the machine it is


def slot_file(folder, cache):
    return folder / "data" / "disk" / cache


def index_of(slots):
    return slots.with_name(slots.name + "~index")


def logs_of(slots):
    """The logs of a cache's index, by number."""
    prefix = slots.name + "~log."
    return {int(path.name[len(prefix):]): path for path in slots.parent.glob(prefix + "*")}


def checkpoint_number(slots):
    """The first log that counts beside the last finished checkpoint; 0 where there is none."""
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
    """One of: a flipped bit, a sector of zeros (never written), a sector of another place (misdirected). The
    bytes are others afterwards."""
    begin = LABEL_BYTES + slot * SLOT_BYTES + PAGE
    with open(slots, "r+b") as file:
        sector = begin + random.randrange(BLOCK_BYTES // SECTOR) * SECTOR
        kind = random.choice(["flipped", "zeros", "misdirected"])
        if kind == "flipped":
            flip_bit(slots, random.randrange(begin, begin + BLOCK_BYTES), random)
        else:
            file.seek(begin - PAGE)  # its own header
            other = bytes(SECTOR) if kind == "zeros" else file.read(SECTOR)
            file.seek(sector)
            file.write(other)
    return kind


def damage_index(slots, random):
    """Of a cache's index: a checkpoint or log that is gone, cut off or has a flipped bit. What was done."""
    logs = logs_of(slots)
    victims = [path for path in (index_of(slots), *logs.values()) if path.exists()]
    victim = random.choice(victims)
    kind = random.choice(["gone", "cut", "flipped"])
    if kind == "gone":
        victim.unlink()
    elif kind == "cut":
        os.truncate(victim, random.randrange(victim.stat().st_size))
    else:
        # Where it counts: what lies behind a log's last record is not read.
        used = len(victim.read_bytes().rstrip(b"\0"))
        flip_bit(victim, random.randrange(max(used, 1)), random)
    return f"{victim.name} {kind}"


def undo_records(path):
    """(file, offset, bytes that were there), or (file, None, None) for a flush, in the order of the calls."""
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
                return  # killed before the write
            yield name, offset, data


def cut_power(undo, slot_files, random):
    """Every page that was written since the last flush of its file is as it is now, or as it was before any
    of its last writes. Of a log that no one flushed each page may have come to the disk or not."""
    before = {}  # (file, page's offset): what was there before each write since the flush
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
            chance = random.choice([0, 0.2, 1])  # of a page to be lost
            with open(path, "r+b") as log:
                used = len(log.read().rstrip(b"\0"))
                if used:  # it was begun before the machine was started again
                    log.seek(LOG_BOOT)
                    log.write(random.randbytes(8))
                for offset in range(0, used, PAGE):
                    if random.random() < chance:
                        log.seek(offset)
                        log.write(bytes(PAGE))
                        lost += 1
    return lost
