"""GPT-2's text form of bytes."""

# A printable byte is its Latin-1 character, the others are characters from U+0100 on.
PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
CHARACTER_TO_BYTE = {chr(byte): byte for byte in PRINTABLE} | {
    chr(0x100 + number): byte for number, byte in enumerate(sorted(set(range(256)) - set(PRINTABLE)))
}
