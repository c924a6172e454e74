"""Programs of others whose memory is measured: k-means, LU, inference; on seeded random input.

    pip install numpy scipy scikit-learn onnx onnxruntime
    numeric.py check kmeans               whether it can run here
    numeric.py [--scale N] kmeans         scikit-learn, 1.5 million points of 24 dimensions
    numeric.py [--scale N] lu             LAPACK's dense LU of 15,000 x 15,000 numbers (1.8 GB)
    numeric.py [--scale N] --model FILE model | inference
                                          make a network of random weights; run it (ONNX Runtime)

One thread each, or --threads N. Prints a line of JSON with a checksum of the result, which is the
same however much memory it had, with equally many threads; with more than two it may depend on how
they take turns, since sums of theirs are added up in the order in which they are done. It never
asks the network for anything.
"""

import argparse
import hashlib
import importlib
import json
import os
import time

SEED = 42
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
POINTS, DIMENSIONS, CLUSTERS, ROUNDS = 1_500_000, 24, 8, 20
ROWS = 15_000
LAYERS, CHANNELS, SIDE, INPUTS = 40, 512, 8, 20
MODULES = {
    "kmeans": ("numpy", "sklearn"),
    "lu": ("numpy", "scipy"),
    "inference": ("numpy", "onnx", "onnxruntime"),
}


def kmeans(args):
    """Lloyd's algorithm: the points are read from first to last, again and again."""
    import numpy
    from sklearn.cluster import KMeans

    rng = numpy.random.default_rng(SEED)
    points = rng.random((POINTS // args.scale, DIMENSIONS))
    first = points[:CLUSTERS].copy()
    model = KMeans(CLUSTERS, init=first, n_init=1, max_iter=ROUNDS, tol=0, algorithm="lloyd")
    model.set_params(copy_x=False)
    return [model.fit(points).labels_, model.cluster_centers_]


def lu(args):
    """Blocked, in place: written many times, in squares."""
    import numpy
    from scipy.linalg import lu_factor

    rows = int(ROWS / args.scale**0.5)
    rng = numpy.random.default_rng(SEED)
    matrix = numpy.asfortranarray(rng.random((rows, rows)).T)
    factors, pivots = lu_factor(matrix, overwrite_a=True, check_finite=False)
    return [factors.diagonal().copy(), pivots]


def model(args):
    """Convolutions with skips between them, as in a network for pictures."""
    import numpy
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = numpy.random.default_rng(SEED)
    shape = (CHANNELS, CHANNELS, 3, 3)
    nodes, weights, value = [], [], "input"
    for layer in range(max(1, LAYERS // args.scale)):
        weight = rng.standard_normal(shape, dtype=numpy.float32) * (2 / (CHANNELS * 9)) ** 0.5
        weights.append(numpy_helper.from_array(weight, f"weight{layer}"))
        conv, relu, out = (f"{name}{layer}" for name in ("conv", "relu", "out"))
        nodes.append(helper.make_node("Conv", [value, f"weight{layer}"], [conv], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [conv], [relu]))
        nodes.append(helper.make_node("Add", [relu, value], [f"sum{layer}"]))
        # As large as before, whatever the number of layers.
        nodes.append(helper.make_node("Tanh", [f"sum{layer}"], [out]))
        value = out
    tensor = lambda name: helper.make_tensor_value_info(
        name, TensorProto.FLOAT, [1, CHANNELS, SIDE, SIDE]
    )
    graph = helper.make_graph(nodes, "network", [tensor("input")], [tensor(value)], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 8
    onnx.save(made, args.model)
    return [numpy.zeros(1)]


def inference(args):
    """The weights are read in their order for each input, and never written."""
    import numpy
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = args.threads, 1
    session = onnxruntime.InferenceSession(args.model, options, ["CPUExecutionProvider"])
    rng = numpy.random.default_rng(SEED)
    results = []
    for _ in range(INPUTS):
        picture = rng.random((1, CHANNELS, SIDE, SIDE), dtype=numpy.float32)
        results += session.run(None, {"input": picture})
    return results


def check(args):
    """Imports what a program needs; Python says what is missing."""
    for name in MODULES[args.of]:
        importlib.import_module(name)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=int, default=1, help="divide the size of the input")
    parser.add_argument("--threads", type=int, default=1, help="that it computes with")
    parser.add_argument("--model", default="network.onnx", help="file of the network")
    commands = parser.add_subparsers(dest="program", required=True)
    for run in (kmeans, lu, model, inference, check):
        command = commands.add_parser(run.__name__, help=run.__doc__)
        command.set_defaults(run=run)
    command.add_argument("of", choices=MODULES)
    args = parser.parse_args()
    # Before anything is imported that reads them.
    os.environ.update({name: str(args.threads) for name in THREADS})
    begin = time.monotonic()
    result = args.run(args)
    if result is None:
        return
    digest = hashlib.blake2b(digest_size=8)
    for array in result:
        digest.update(array.tobytes())
    run_ms = (time.monotonic() - begin) * 1e3
    line = {"program": args.program, "scale": args.scale, "checksum": digest.hexdigest()}
    print(json.dumps({**line, "run_ms": run_ms}))


if __name__ == "__main__":
    main()
