"""Reads a journal (src/serve/journal.h) as a stranger would: what of which answer was written down."""
import struct

OPEN, TOKENS, DROP = 1, 2, 3
HEAD, FRAME = 96, 12


def crc32c(data, crc=0):
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def records(data):
    """(type, payload) of every whole record."""
    assert data[:8] == b"SLUICEJ\n" and struct.unpack_from("<I", data, 8)[0] == 2
    salt, at = data[12:28], HEAD
    while at + FRAME + 4 <= len(data):
        kind, n, check = struct.unpack_from("<III", data, at)
        if check != crc32c(data[at:at + 8], crc32c(salt)) or at + FRAME + n + 4 > len(data):
            return
        payload = data[at + FRAME:at + FRAME + n]
        assert struct.unpack_from("<I", data, at + FRAME + n)[0] == crc32c(payload, crc32c(data[at:at + 8]))
        yield kind, payload
        at += FRAME + n + 4


def unfinished(path):
    """Requests with a choice that has not ended."""
    open_choices = {}
    for kind, payload in records(path.read_bytes()):
        number = struct.unpack_from("<Q", payload)[0]
        if kind == OPEN:
            open_choices[number] = struct.unpack_from("<I", payload, 146)[0]
        elif kind == TOKENS:
            open_choices[number] -= payload[24] != 0
        else:
            del open_choices[number]
    return sum(n > 0 for n in open_choices.values())


def tokens(path):
    """id of the answer -> choice -> its tokens so far."""
    name, out = {}, {}
    for kind, payload in records(path.read_bytes()):
        number = struct.unpack_from("<Q", payload)[0]
        if kind == OPEN:
            name[number] = payload[10:58].split(b"\0")[0].decode()
            out[name[number]] = {}
        elif kind == TOKENS:
            choice, at, n, _ = struct.unpack_from("<IIII", payload, 8)
            own = out[name[number]].setdefault(choice, [])
            assert at == len(own)
            own += struct.unpack_from(f"<{n}I", payload, 37)
        else:
            del out[name[number]]
    return out
