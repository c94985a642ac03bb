"""Reading a ``.wandb`` file, to see that a copy is whole before anybody relies on it.

wandb stopped shipping a reader. The file is LevelDB's log framing, a seven-byte file header and then
blocks of 32 KiB holding checksummed fragments, around protobuf records that wandb still ships.
"""

import struct
import zlib
from pathlib import Path

MAGIC = b":W&B\xe1\xbe\x00"
BLOCK_BYTES = 32 * 1024
HEADER = struct.Struct("<IHB")  # checksum of kind and payload, length of payload, kind
FULL, FIRST, LAST = 1, 2, 4  # 3 is a middle fragment


def last_logged_step(path):
    """The highest step whose row is in the file; ``None`` without any, or where this is no wandb file.

    Reads up to the first fragment that is cut short or damaged: what wandb itself could still upload.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    last = None
    for payload in records(path):
        record = Record.FromString(payload)
        if record.HasField("history"):
            step = record.history.step.num
            last = step if last is None else max(last, step)
    return last


def copies(folder):
    """The ``.wandb`` files in a run folder, oldest first."""
    return sorted(Path(folder).glob("wandb/*run-*/run-*.wandb"), key=lambda path: path.parent.name.split("run-", 1)[1])


def records(path):
    """The payload of every whole record, in order."""
    with Path(path).open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return
        parts, used = [], len(MAGIC)
        while block := file.read(BLOCK_BYTES - used):
            used = 0
            for kind, payload in _fragments(block):
                if kind is None:
                    return
                parts = [payload] if kind in (FULL, FIRST) else [*parts, payload]
                if kind in (FULL, LAST):
                    yield b"".join(parts)


def _fragments(block):
    """``(kind, payload)`` of each fragment; kind ``None`` at the first that is damaged or cut short."""
    at = 0
    while at + HEADER.size <= len(block):  # a shorter rest of a block is padding
        checksum, length, kind = HEADER.unpack_from(block, at)
        payload = block[at + HEADER.size : at + HEADER.size + length]
        if len(payload) < length or zlib.crc32(bytes([kind]) + payload) != checksum:
            yield None, b""
            return
        yield kind, payload
        at += HEADER.size + length
