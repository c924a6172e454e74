"""Arrays of numpy, which asks for huge pages and computes in several threads."""
import zlib

import numpy

rng = numpy.random.default_rng(7)
a = rng.integers(0, 1 << 40, 3_000_000)
b = numpy.sort(a)
print(zlib.crc32(b), bool((b[1:] >= b[:-1]).all()), int(a.sum() - b.sum()))
c = numpy.zeros((1200, 1200))
c += numpy.arange(1200)
d = (c.astype(numpy.int64) @ numpy.ones((1200, 8), numpy.int64))
print(int(d.sum()), zlib.crc32(d))
a.resize(4_000_000, refcheck=False)
print(int(a[3_000_000:].sum()), zlib.crc32(a))
e = rng.random((700, 700))
f = numpy.linalg.solve(e, e @ numpy.ones(700))
print(bool(numpy.allclose(f, 1, atol=1e-6)))
