"""Under which texts a message is indexed, and what the index stores of them.

Here and not beside the index, because the kernels hash keys while they read the log.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from commitbus.commitlog.java_hash import java_string_hash
from commitbus.commitlog.record_format import TRANSACTION_FLAGS, TRANSACTION_ROLLED_BACK


def index_key_texts(topic: str, sys_flag: int, unique_key: str, keys: str, tags: str) -> list[str]:
    """Return the texts under which a message is indexed, in the order of its entries.

    The unique key, each word of KEYS, then the tags; none for a rolled-back transaction.
    """
    if sys_flag & TRANSACTION_FLAGS == TRANSACTION_ROLLED_BACK:
        return []
    texts = [f"{topic}#{unique_key}"] if unique_key else []
    if keys:
        texts += [f"{topic}#{key}" for key in keys.split(" ") if key]
    if tags:
        texts.append(f"{topic}#T#{tags}")
    return texts


def key_hash(text: str) -> int:
    """Return the hash under which a key text is stored, in [0, 2^31)."""
    absolute = abs(java_string_hash(text))
    # Java's Math.abs(-2^31) stays negative, which RocketMQ stores as 0.
    return 0 if absolute == 1 << 31 else absolute


_UNITS_MAX = 1 << 17


def _powers(base: int) -> npt.NDArray[np.uint32]:
    powers = np.full(_UNITS_MAX, base, dtype=np.uint32)
    powers[0] = 1
    return np.multiply.accumulate(powers, dtype=np.uint32)


_POWERS = _powers(31)
_INVERSE_POWERS = _powers(pow(31, -1, 1 << 32))


def key_hashes(texts: Sequence[str]) -> npt.NDArray[np.int32]:
    """Return `key_hash` of each non-empty text: shape (len(texts),), dtype int32.

    Java's hash is the polynomial sum(unit[i] * 31^(length - 1 - i)) mod 2^32 over UTF-16 units.
    31 has an inverse there, so the running sum of unit[i] * 31^-i over all the texts joined gives
    each text's hash as the difference at its two ends, times a power: a few numpy passes for the
    batch, 0.2 us per key where a Python loop takes more than 1 us.
    """
    joined = "".join(texts)
    encoded = joined.encode("utf-16-le", "surrogatepass")
    # A character beyond U+FFFF is two units, so positions in the text are not units any more.
    if len(texts) < 2 or len(encoded) != 2 * len(joined):
        return np.fromiter(map(key_hash, texts), dtype=np.int32, count=len(texts))
    if len(joined) >= _UNITS_MAX:
        middle = len(texts) // 2
        return np.concatenate([key_hashes(texts[:middle]), key_hashes(texts[middle:])])
    ends = np.cumsum(np.fromiter(map(len, texts), dtype=np.intp, count=len(texts)))
    terms = np.frombuffer(encoded, dtype="<u2") * _INVERSE_POWERS[: len(joined)]
    sums = np.cumsum(terms, dtype=np.uint32)[ends - 1]
    sums[1:] -= sums[:-1].copy()
    hashes = (sums * _POWERS[ends - 1]).view(np.int32)
    # The absolute value of -2^31 stays negative, here as in Java, and is stored as 0.
    return np.maximum(np.abs(hashes), np.int32(0))
