"""Files, pipes and sockets from and to memory that is not there, also past the page cache."""
import hashlib
import mmap
import os
import socket
import tempfile
import threading

MIB = 1 << 20
LEN = 16 * MIB
PART = MIB


def fill(seed):
    return b"".join(hashlib.md5(b"%d-%d" % (seed, n)).digest() * 256 for n in range(LEN // 4096))


def crowd_out():
    other = bytearray(LEN)
    other[::4096] = b"x" * (LEN // 4096)


buffer = mmap.mmap(-1, LEN)
buffer[:] = fill(1)
before = hashlib.sha256(buffer).hexdigest()
with tempfile.TemporaryFile(dir=".", buffering=0) as file:
    crowd_out()
    parts = [memoryview(buffer)[at:at + PART] for at in range(0, LEN, PART)]
    print(os.writev(file.fileno(), parts))
    into = bytearray(LEN)
    crowd_out()
    file.seek(0)
    print(file.readinto(into), hashlib.sha256(into).hexdigest() == before)
    into[:] = bytes(LEN)
    crowd_out()
    halves = [memoryview(into)[LEN // 2:], memoryview(into)[:LEN // 2]]
    print(os.preadv(file.fileno(), halves, 0))
    print(hashlib.sha256(into[LEN // 2:] + into[:LEN // 2]).hexdigest() == before)
    with mmap.mmap(file.fileno(), LEN) as shared:
        print(hashlib.sha256(shared).hexdigest() == before)
        shared[:MIB] = buffer[MIB:2 * MIB]
    print(os.pread(file.fileno(), MIB, 0) == buffer[MIB:2 * MIB])
    del parts, halves

path = "direct"
try:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
except OSError as why:
    print("no O_DIRECT", why.errno)
else:
    view = memoryview(buffer)
    crowd_out()
    print(sum(os.pwritev(fd, [view[at:at + PART]], at) for at in range(0, LEN, PART)))
    into = mmap.mmap(-1, LEN)
    is_over = threading.Event()

    def press():
        while not is_over.is_set():
            crowd_out()

    thread = threading.Thread(target=press)
    thread.start()
    target = memoryview(into)
    for round in range(2):
        with open(fd, "rb", buffering=0, closefd=False) as file:
            file.seek(0)
            have = 0
            while have < LEN:
                have += file.readinto(target[have:have + PART])
        print(hashlib.sha256(into).hexdigest() == before)
        target[:] = bytes(LEN)
        quarters = [target[at:at + PART // 4] for at in range(0, PART, PART // 4)]
        print(os.preadv(fd, quarters, 0), into[:PART] == buffer[:PART])
    is_over.set()
    thread.join()
    os.close(fd)

near, far = socket.socketpair()
received = bytearray(LEN)


def receive():
    view, have = memoryview(received), 0
    while have < LEN:
        have += far.recv_into(view[have:])


thread = threading.Thread(target=receive)
thread.start()
near.sendall(buffer)
thread.join()
print(hashlib.sha256(received).hexdigest() == before)
