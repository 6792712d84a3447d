"""What all tokenizers share: the form of ids on disk, and GPT-2's text form of bytes."""

import numpy as np

# dtypes of ids on disk
DTYPES = {dtype.name: dtype for dtype in (np.dtype("<u2"), np.dtype("<u4"))}

# GPT-2's text form of bytes: a printable byte is its Latin-1 character, the others are characters from U+0100 on.
PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
CHARACTER_TO_BYTE = {chr(byte): byte for byte in PRINTABLE} | {
    chr(0x100 + number): byte for number, byte in enumerate(sorted(set(range(256)) - set(PRINTABLE)))
}


def id_dtype(vocab_size: int) -> np.dtype:
    """The smallest dtype of token shards that holds ids below `vocab_size`: uint16 or uint32."""
    return next(dtype for dtype in DTYPES.values() if vocab_size <= np.iinfo(dtype).max + 1)
