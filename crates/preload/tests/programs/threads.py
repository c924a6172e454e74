"""Eight threads with large buffers of their own, and objects of the interpreter's."""
import hashlib
import json
import threading
import zlib

MIB = 1 << 20
THREADS = 8
said = [None] * THREADS


def work(number):
    seed = hashlib.sha256(b"%d" % number).digest()
    buffer = bytearray(seed * (5 * MIB // len(seed)))
    for step in range(3):
        digest = hashlib.blake2b(buffer).digest()
        at = int.from_bytes(digest[:4], "little") % (4 * MIB)
        buffer[at:at + len(digest)] = digest
        buffer.extend(digest * 1000)
        part = zlib.compress(bytes(buffer[at:at + MIB // 2]), 1)
        assert zlib.decompress(part) == buffer[at:at + MIB // 2]
    words = sorted(hashlib.md5(b"%d" % n).hexdigest() for n in range(6000))
    table = {word: n for n, word in enumerate(words)}
    text = json.dumps(table)
    assert json.loads(text) == table
    said[number] = (hashlib.sha256(buffer).hexdigest(), zlib.crc32(text.encode()))


threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for number, words in enumerate(said):
    print(number, *words)
