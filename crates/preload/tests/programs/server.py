"""A server that forks: children check and change their copy of its memory and answer over pipes,
while threads of the parent go on changing theirs."""
import hashlib
import os
import threading

MIB = 1 << 20
PAGE = 4096
CHILDREN = 8

memory = bytearray(b"".join(hashlib.md5(b"%d" % n).digest() * (PAGE // 16)
                            for n in range(48 * MIB // PAGE)))
before = hashlib.sha256(memory).hexdigest()
busy = bytearray(8 * MIB)
is_over = threading.Event()


def change(number):
    count = 0
    while not is_over.is_set():
        at = (count * 37 % 1024) * 2 * PAGE + number * 8
        busy[at:at + 8] = count.to_bytes(8, "little")
        assert busy[at:at + 8] == count.to_bytes(8, "little")
        count += 1


def serve(number, to):
    assert hashlib.sha256(memory).hexdigest() == before
    for page in range(number, len(memory) // PAGE, 16):
        memory[page * PAGE:page * PAGE + 8] = number.to_bytes(8, "big")
    new = bytearray(b"%08d" % number * (MIB // 4))
    answer = hashlib.sha256(memory).hexdigest() + hashlib.sha256(new).hexdigest()
    os.write(to, answer.encode())


threads = [threading.Thread(target=change, args=(number,)) for number in range(3)]
for thread in threads:
    thread.start()
pipes = []
for number in range(CHILDREN):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            serve(number, writer)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writer)
    pipes.append((child, reader))
    # Two at a time.
    if len(pipes) == 2 or number == CHILDREN - 1:
        for child, reader in pipes:
            answer = b""
            while part := os.read(reader, 4096):
                answer += part
            os.close(reader)
            print(answer.decode(), os.waitpid(child, 0)[1])
        pipes.clear()
is_over.set()
for thread in threads:
    thread.join()
assert hashlib.sha256(memory).hexdigest() == before
