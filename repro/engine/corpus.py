"""Where tokens come from: finite streams with random access."""

import hashlib
import os
import platform
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from repro.errors import InputError

TEXT_BYTES = 4_000_000  # thousands of windows, and still read in a tenth of a second
NOT_TEXT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "__pycache__"}
BLOCK_BYTES = 1 << 20
BLOCKS = 64


class Tokens(Protocol):
    """A stream of ``length`` tokens."""

    length: int

    def read(self, start, count):
        """The int64 tensor of ``count`` tokens from ``start`` on."""

    def describe(self):
        """Size and fingerprint, for the record."""


@dataclass(frozen=True)
class Text:
    """Bytes as tokens."""

    text: bytes

    @classmethod
    def of_stdlib(cls):
        """Python's own source, files in order of path, up to the first file end past ``TEXT_BYTES``."""
        parts, total = [], 0
        for path in stdlib_files(Path(sysconfig.get_path("stdlib"))):
            parts.append(path.read_bytes())
            total += len(parts[-1])
            if total >= TEXT_BYTES:
                break
        return cls(b"".join(parts))

    @property
    def length(self):
        return len(self.text)

    def read(self, start, count):
        import torch

        return torch.frombuffer(bytearray(self.text[start : start + count]), dtype=torch.uint8).to(torch.int64)

    def describe(self):
        digest = hashlib.sha256(self.text).hexdigest()
        return {
            "tokens": self.length,
            "bytes": self.length,
            "text": f"standard library of Python {platform.python_version()}",
            "sha256": digest,
            "sha256_covers": "the whole text",
        }


def stdlib_files(root):
    """The ``.py`` files below ``root`` in order of relative path, without tests and installed packages."""
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [f for f in folders if f not in NOT_TEXT]
        # _sysconfigdata holds the paths of the build: it would give each machine a text of its own.
        found += [Path(folder, f) for f in files if f.endswith(".py") and not f.startswith("_sysconfigdata")]
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


@dataclass(frozen=True, eq=False)
class Indexed:
    """Megatron's ``.bin``/``.idx`` pair as one stream: its documents in order, read by megatron-core."""

    prefix: str
    reader: object
    ends: object  # numpy int64: number of tokens up to the end of each sequence

    @classmethod
    def open(cls, prefix):
        """The pair at ``prefix``.

        Raises:
            InputError: megatron-core or a file is missing, or the two files do not fit together.
        """
        import numpy as np

        for path in _pair(prefix):
            if not path.is_file():
                hint = "; leave the ending out of data.prefix" if path.with_suffix("").is_file() else ""
                raise InputError(f"data.prefix {prefix}: {path} does not exist{hint}")
            if not path.stat().st_size:
                raise InputError(f"data.prefix {prefix}: {path} is empty")
        library = _indexed_dataset()
        try:
            reader = library(str(prefix))
        except Exception as error:  # whatever the library meets in a broken file: struct, assertion, value, overflow
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(f"data.prefix {prefix}: the .idx file cannot be read: {why}") from None
        lengths, index = reader.sequence_lengths, reader.index
        if not np.issubdtype(index.dtype, np.integer):
            raise InputError(f"data.prefix {prefix}: tokens are {index.dtype.__name__} by the .idx file, not integers")
        size, starts = _pair(prefix)[0].stat().st_size, index.sequence_pointers
        ends = starts + lengths.astype(np.int64) * index.dtype_size
        # Starts are compared too, since a start near 2**63 makes its end wrap around.
        negative = min(starts.min(initial=0), lengths.min(initial=0)) < 0
        if negative or max(starts.max(initial=0), ends.max(initial=0)) > size:
            raise InputError(
                f"data.prefix {prefix}: the .idx file does not fit the .bin file of {size} bytes; "
                "one of them is cut short or broken, or they are of two data sets"
            )
        return cls(str(prefix), reader, np.cumsum(lengths, dtype=np.int64))

    @property
    def length(self):
        return int(self.ends[-1]) if len(self.ends) else 0

    def read(self, start, count):
        import numpy as np
        import torch

        parts, sequence = [], int(np.searchsorted(self.ends, start, side="right"))
        while count:
            rest = int(self.ends[sequence]) - start
            take = min(rest, count)
            if take:
                offset = int(self.reader.sequence_lengths[sequence]) - rest
                parts.append(self.reader.get(sequence, offset, take).astype(np.int64))
            start, count, sequence = start + take, count - take, sequence + 1
        return torch.from_numpy(np.concatenate(parts))

    def describe(self):
        digest, whole = hashlib.sha256(), True
        for path in _pair(self.prefix):
            whole &= _digest(path, digest)
        return {
            "tokens": self.length,
            "bytes": sum(path.stat().st_size for path in _pair(self.prefix)),
            "documents": len(self.reader.document_indices) - 1,
            "sha256": digest.hexdigest(),
            "sha256_covers": "both files" if whole else f"size and {BLOCKS} blocks of 1 MiB of each file",
        }


def _pair(prefix):
    return Path(f"{prefix}.bin"), Path(f"{prefix}.idx")


def _indexed_dataset():
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # it says that Transformer Engine and Apex are missing; reading needs neither
            from megatron.core.datasets.indexed_dataset import IndexedDataset
    except ImportError as error:
        raise InputError(
            "data.kind megatron needs the extra 'megatron': pip install 'frontier-llm-repro[megatron]' "
            f"({str(error).splitlines()[0]})"
        ) from None

    class Quiet(IndexedDataset):
        """The library's, without its destructor, which prints a traceback for a file it could not open."""

        def __del__(self):
            pass

    return Quiet


def _digest(path, digest):
    """Feed ``path`` to ``digest``: whole if small, else evenly spread blocks. Returns whether it was whole."""
    size = path.stat().st_size
    digest.update(f"{size} ".encode())
    with path.open("rb") as file:
        if size <= BLOCKS * BLOCK_BYTES:
            digest.update(file.read())
            return True
        for block in range(BLOCKS):
            file.seek(block * (size - BLOCK_BYTES) // (BLOCKS - 1))
            digest.update(file.read(BLOCK_BYTES))
    return False
