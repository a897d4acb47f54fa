"""Measures the speed of a window relative to other work in the same run.

    python benchmarks/speed.py accumulation                    # 2 minutes on 2 cores
    python benchmarks/speed.py matmul                          # 3 minutes
    python benchmarks/speed.py profile                         # 1 minute
    python benchmarks/speed.py cuts                            # 3 minutes
    python benchmarks/speed.py price --shared ../shared        # 11 minutes
    python benchmarks/speed.py determinism                     # 2 minutes
    python benchmarks/speed.py padding --shared ../shared      # 5 minutes
    python benchmarks/speed.py shapes --shared ../shared       # 1 minute
    python benchmarks/speed.py compiled                        # about 8 minutes

`accumulation` compares a whole window (4 x 8: zero, accumulate, reduce, clip, AdamW) with its four
forward and backward passes alone. `matmul` compares the floating-point operations per second of the
model, whose last layer computes only one token, with those of a large square matrix product.
`profile` measures the share of each kind of operation in the time of an update. `cuts` measures
micro-steps of different shapes and fits the price list that `--cut cost` uses. `price` compares
real windows that are cut with different prices of a micro-step. `determinism` compares a window
with and without `--deterministic`, the default on CPUs. `padding` compares windows of real reviews
that are cut by cost, cut by count, and padded to the maximum. `shapes` shows the shapes that
compiled runs of several lengths are padded to, and how much padding they need. `compiled` compares
updates and predictions with and without XLA.

All parts use BERT-Small; each writes speed-<part>.json and prints a Markdown table.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.config import disable_op_determinism
from tools import TASK, Results, run_part, table, yelp_stores

from bertaccum.accumulation.gradient_tensors import values_of
from bertaccum.bert.encoder_config import EncoderConfig
from bertaccum.bert.model_source import ModelSource
from bertaccum.bert.packed_tokens import inputs_of_padded
from bertaccum.bert.presets import PRESET_CONFIGS
from bertaccum.data.window_cuts import Prices, make_cut
from bertaccum.data.window_shapes import choose_shapes
from bertaccum.data.windows import Window, make_window, window_rows
from bertaccum.options.commands import TrainConfig
from bertaccum.training.recipe import build_model, make_optimizer
from bertaccum.training.step import Trainee, make_update

TARGET, MICRO_BATCH = 32, 8
ON_GPU = bool(tf.config.list_physical_devices("GPU"))
# CPUs emulate float16.
PRECISIONS = {"float32": tf.float32, "mixed_bfloat16": tf.bfloat16}
if ON_GPU:
    PRECISIONS["mixed_float16"] = tf.float16
ENCODER = PRESET_CONFIGS["bert-small"]
Timed = dict[Any, float]


def interleaved(runs: Mapping[Any, Callable[..., Any]], repeats: int) -> Timed:
    """Return the median seconds of each run.

    The runs take turns, so that other load on the machine affects all of them.
    """
    seconds: dict[Any, list[float]] = {name: [] for name in runs}
    for number in range(repeats + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if number:  # The first call includes tracing.
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def build(
    precision: str, preset: str = "bert-small", steps: int = TARGET // MICRO_BATCH
) -> tuple[Any, Any, Any]:
    """Return a model with two classes, its optimizer and an update of up to `steps` micro-steps."""
    config = TrainConfig(precision=precision, recompute="none")
    model = build_model(config, ModelSource(preset, PRESET_CONFIGS[preset], None, None), outputs=2)
    optimizer = make_optimizer(config, 1000, steps)
    return model, optimizer, make_update(TASK, model, optimizer, 0, accumulate=True)


def full_window(length: int, examples: int = TARGET, micro_batch: int = MICRO_BATCH) -> Window:
    """Return a window of examples of full length, as after padding to the maximum."""
    tokens = np.random.default_rng(0).integers(1, ENCODER.vocab_size, examples * length)
    return Window(
        token_ids=tokens.astype(np.int32),
        row_splits=np.arange(examples + 1, dtype=np.int64) * length,
        labels=np.arange(examples, dtype=np.int32) % 2,
        cuts=np.arange(0, examples + 1, micro_batch, dtype=np.int32),
    )


# --- Accumulation -----------------------------------------------------------------------


def bare_passes(model: Any, optimizer: Any) -> Callable[[Window], Any]:
    """Return a function that runs the forward and backward passes of a window without an update."""
    trainee = Trainee(TASK, model, optimizer, seed=0)
    optimizer.build(model.trainable_variables)

    @tf.function(input_signature=trainee.signature())
    def passes(*window: Any) -> Any:
        total, share = tf.constant(0.0), trainee.open_share(window)
        for step in tf.range(share.micro_steps):
            tf.autograph.experimental.set_loop_options(parallel_iterations=1)
            loss, gradients = trainee.micro_step(share.micro_batch(step))
            # TensorFlow prunes gradients that do not reach the result, so use one value of each.
            taken = [tf.reshape(tf.cast(values_of(g), tf.float32), [-1])[0] for g in gradients]
            total += loss + 1e-30 * tf.add_n(taken)
        return total

    return lambda window: passes(*window.tensors).numpy()


def accumulation(*_: Path) -> tuple[list[dict[str, Any]], str]:
    results = []
    for precision in PRECISIONS:
        model, optimizer, update = build(precision)
        window, passes = full_window(128), bare_passes(model, optimizer)
        timed = interleaved(
            {"window": partial(update, window), "passes": partial(passes, window)}, 15
        )
        ratio = timed["window"] / timed["passes"]
        results.append({"precision": precision, "ratio": ratio} | timed)
    rows = [
        [r["precision"], f"{r['passes']:.3f}", f"{r['window']:.3f}", f"{r['ratio']:.3f}"]
        for r in results
    ]
    heads = ["precision", "4 bare passes of 8, s", "window of 4 x 8, s", "ratio"]
    return results, table(heads, rows)


# --- Matrix products --------------------------------------------------------------------


def model_flops(encoder: EncoderConfig, length: int, needed: bool = True) -> float:
    """Return the floating-point operations of a forward and backward pass of one example.

    Only matrix products count.

    Args:
      encoder: Dimensions of the encoder.
      length: Tokens of the example.
      needed: Whether to count in the last layer only the keys and values of all tokens and the
        rest for one token, which is all that a classifier of the first token needs.
    """
    h, inner, layers = encoder.hidden_size, encoder.intermediate_size, encoder.num_hidden_layers
    token = 2 * (2 * h * h + 2 * h * inner) + 2 * 2 * length * h  # Operations per query token.
    keys = 2 * 2 * h * h  # Operations for the key and value of one token.
    queries = (layers - 1) * length + 1 if needed else layers * length
    return 3.0 * (queries * token + layers * length * keys)


def product_rate(dtype: tf.DType, size: int = 3072) -> Callable[[], Any]:
    left, right = (tf.cast(tf.random.normal([size, size]), dtype) for _ in range(2))
    product = tf.function(lambda: tf.reduce_sum(tf.cast((left @ right)[:1, :1], tf.float32)))
    return lambda: product().numpy()


def matmul(*_: Path) -> tuple[list[dict[str, Any]], str]:
    results = []
    for precision, dtype in PRECISIONS.items():
        _, _, update = build(precision)
        window, size = full_window(128), 8192 if ON_GPU else 3072
        runs = {"update": partial(update, window), "product": product_rate(dtype, size)}
        timed = interleaved(runs, 15)
        rates = {
            "needed_flops": TARGET * model_flops(ENCODER, 128) / timed["update"],
            "model_flops": TARGET * model_flops(ENCODER, 128, needed=False) / timed["update"],
            "product_flops": 2 * size**3 / timed["product"],
        }
        results.append(
            {"precision": precision, "examples_per_second": TARGET / timed["update"]}
            | {"ratio": rates["needed_flops"] / rates["product_flops"]}
            | {"whole_ratio": rates["model_flops"] / rates["product_flops"]}
            | rates
        )
    rows = [
        [
            r["precision"],
            f"{r['examples_per_second']:.1f}",
            f"{r['needed_flops'] / 1e9:.0f}",
            f"{r['product_flops'] / 1e9:.0f}",
            f"{r['ratio']:.2f}",
            f"{r['whole_ratio']:.2f}",
        ]
        for r in results
    ]
    heads = ["precision", "examples/s", "needed, GFLOP/s", "matrix product, GFLOP/s", "ratio"]
    return results, table([*heads, "with the whole last layer"], rows)


# --- Where the time goes ----------------------------------------------------------------

# Kinds of TensorFlow operations, by their names in the profile.
KINDS = {
    "matrix products": ("_MklMatMul", "_MklEinsum", "_MklBatchMatMulV2", "MatMul", "BatchMatMulV2"),
    "sums over tokens": ("BiasAddGrad",),
    "conversions": ("Cast",),
    "transposes and lookups": ("_MklTranspose", "Transpose", "GatherV2", "StridedSlice"),
    "accumulators and AdamW": (
        *("AssignAddVariableOp", "AssignSubVariableOp", "ResourceApplyAdam", "L2Loss"),
        *("ResourceScatterAdd", "ResourceScatterUpdate", "BroadcastTo"),
    ),
}
OTHER = "other element-wise operations"


def profile(_: Path, out: Path) -> tuple[Results, str]:
    results: Results = []
    for precision in PRECISIONS:
        _, _, update = build(precision)
        window = full_window(128)
        timed = interleaved({"update": partial(update, window)}, 9)
        seconds = profiled(partial(update, window), out / "profile")
        results.append({"precision": precision, "update": timed["update"], "kinds": seconds})
    kinds = [*KINDS, OTHER]
    rows = [
        [r["precision"], f"{r['update']:.3f}"]
        + [f"{r['kinds'].get(k, 0) / sum(r['kinds'].values()):.0%}" for k in kinds]
        for r in results
    ]
    return results, table(["precision", "update, s", *kinds], rows)


def profiled(run: Callable[[], Any], folder: Path) -> dict[str, float]:
    """Return the seconds that operations of each kind take in a call, summed over threads."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    shutil.rmtree(folder, ignore_errors=True)
    tf.profiler.experimental.start(str(folder))
    run()
    tf.profiler.experimental.stop()
    space = xplane_pb2.XSpace()
    space.ParseFromString(next(folder.rglob("*.xplane.pb")).read_bytes())
    kinds = {name: kind for kind, names in KINDS.items() for name in names}
    seconds: dict[str, float] = {}
    for plane in space.planes:
        for event in (event for line in plane.lines for event in line.events):
            # The events of operations are called NAME:KIND, those of functions only NAME.
            name = plane.event_metadata[event.metadata_id].name.rpartition(":")
            if "while/" in name[0] or "cond/" in name[0]:
                kind = kinds.get(name[2].split("#")[0], OTHER)
                seconds[kind] = seconds.get(kind, 0.0) + event.duration_ps / 1e12
    return seconds


# --- Prices of micro-steps --------------------------------------------------------------

SHAPES = [(n, length) for n in (1, 2, 4, 8, 16) for length in (16, 64, 128, 256, 512)]


def cuts(*_: Path) -> tuple[list[dict[str, Any]], str]:
    _, _, update = build("float32")
    shapes = [(n, length) for n, length in SHAPES if n * length <= 2048]
    runs = {
        f"{n} x {length}": partial(update, full_window(length, 2 * n, n)) for n, length in shapes
    }
    timed = interleaved(runs | {"once": partial(update, full_window(16, 1, 1))}, 7)
    # Two windows of one micro-step minus one window of two micro-steps leave one update.
    apply = 2 * timed["once"] - timed["1 x 16"]
    seconds = np.array([(timed[name] - apply) / 2 for name in runs])
    parts = np.array([[1, n * length, n * length**2] for n, length in shapes])
    # Dividing by the measured seconds minimizes relative errors.
    step, token, pair = np.linalg.lstsq(parts / seconds[:, None], np.ones(len(shapes)))[0]
    prices = {"step_tokens": step / token, "attention": pair / token, "apply_seconds": apply}
    results = [
        {"micro_batch": n, "length": length, "seconds": own, "by_price": price}
        for (n, length), own, price in zip(
            shapes, seconds, parts @ [step, token, pair], strict=True
        )
    ]
    rows = [
        [
            r["micro_batch"],
            r["length"],
            f"{1e3 * r['seconds']:.0f} ms",
            f"{r['by_price'] / r['seconds']:.2f}",
        ]
        for r in results
    ]
    text = table(["micro-batch", "length", "micro-step", "price list / measured"], rows)
    text += (
        f"\n\nThe fixed cost of a micro-step equals {step / token:.0f} tokens. A token's attention"
        f" to {token / pair:.0f} tokens costs as much as its dense layers. The update takes"
        f" {1e3 * apply:.0f} ms."
    )
    return [prices, *results], text


PRICES = (50, 100, 150, 200, 400)


def price(shared: Path, out: Path) -> tuple[list[dict[str, Any]], str]:
    """Compare windows that are cut with several fixed costs of a micro-step."""
    results = []
    for precision, (length, store) in itertools.product(
        ("float32", "mixed_bfloat16"), yelp_stores(shared, out, (128, 512))
    ):
        _, _, update = build(precision)
        rows = [window_rows(n, len(store), TARGET, 0)[1] for n in range(WINDOWS)]
        runs, steps = {}, {}
        for tokens in PRICES:
            cut = make_cut("cost", store.largest, Prices(float(tokens)))
            windows = [make_window(store, r, MICRO_BATCH, cut) for r in rows]
            for window in windows:
                update(window)  # oneDNN makes a kernel for each new shape
            turn = itertools.cycle(windows)
            runs[tokens] = lambda update=update, turn=turn: update(next(turn))
            steps[tokens] = statistics.mean(w.micro_steps for w in windows)
        timed = interleaved(runs, WINDOWS)
        results += [
            {"precision": precision, "length": length, "price": tokens}
            | {"micro_steps": steps[tokens], "examples_per_second": TARGET / timed[tokens]}
            for tokens in PRICES
        ]
    heads = ["precision", "length", "price, tokens", "micro-steps", "examples/s"]
    rows = [
        [
            r["precision"],
            r["length"],
            r["price"],
            f"{r['micro_steps']:.1f}",
            f"{r['examples_per_second']:.1f}",
        ]
        for r in results
    ]
    return results, table(heads, rows)


# --- Determinism ------------------------------------------------------------------------


def determinism(*_: Path) -> tuple[list[dict[str, Any]], str]:
    results, window = [], full_window(128)
    for precision in PRECISIONS:
        runs: dict[str, Callable[[], Any]] = {}
        for kind, switch in {
            "with": tf.config.experimental.enable_op_determinism,
            "without": disable_op_determinism,
        }.items():
            switch()
            _, _, update = build(precision)
            runs[kind] = lambda switch=switch, update=update: (switch(), update(window))
        timed = interleaved(runs, 15)
        ratio = timed["with"] / timed["without"]
        results.append({"precision": precision, "ratio": ratio} | timed)
    rows = [
        [r["precision"], f"{r['with']:.3f}", f"{r['without']:.3f}", f"{r['ratio']:.3f}"]
        for r in results
    ]
    return results, table(["precision", "--deterministic, s", "without, s", "ratio"], rows)


# --- Padding ----------------------------------------------------------------------------

WINDOWS = 12


def padding(shared: Path, out: Path) -> tuple[list[dict[str, Any]], str]:
    _, _, update = build("float32")
    results = []
    for length, store in yelp_stores(shared, out, (128, 256, 512)):
        rows = [window_rows(n, len(store), TARGET, 0)[1] for n in range(WINDOWS)]
        cuts = {kind: make_cut(kind, store.largest) for kind in ("cost", "count")}
        windows = {
            kind: [make_window(store, r, MICRO_BATCH, cut) for r in rows]
            for kind, cut in cuts.items()
        } | {"maximum": [full_window(length)] * WINDOWS}
        turns = {kind: iter(own * 2) for kind, own in windows.items()}
        runs = {kind: (lambda t=turn: update(next(t))) for kind, turn in turns.items()}
        timed = interleaved(runs, WINDOWS)
        for kind, own in windows.items():
            real = sum(int(w.row_splits[-1]) for w in windows["count"])
            share = real / sum(w.padded_tokens for w in own)
            steps = statistics.mean(w.micro_steps for w in own)
            results.append(
                {"length": length, "cut": kind, "share": share, "micro_steps": steps}
                | {"examples_per_second": TARGET / timed[kind]}
                | {"against_maximum": timed["maximum"] / timed[kind]}
            )
    rows = [
        [
            r["length"],
            r["cut"],
            f"{r['share']:.3f}",
            f"{r['micro_steps']:.1f}",
            f"{r['examples_per_second']:.1f}",
            f"{r['against_maximum']:.2f}",
        ]
        for r in results
    ]
    heads = ["length", "cut by", "non-padding share", "micro-steps", "examples/s", "speed-up"]
    return results, table(heads, rows)


# --- Shapes of compiled runs ------------------------------------------------------------

# Time to compile a shape, in tokens: 5 seconds at 300,000 tokens/s.
COMPILE_TOKENS = 1.5e6
# Number of windows from which shapes are chosen, and the first of the windows that test them.
SEEN, UNSEEN = 64, 10_000


def shapes(shared: Path, out: Path) -> tuple[Results, str]:
    """Compare windows that are padded to a few shapes with windows that are cut by cost."""
    results: Results = []
    for length, store in yelp_stores(shared, out, (128, 512)):
        padded = store.padded_to(8, length)  # as in half precision
        rows = [window_rows(n, len(store), TARGET, 0)[1] for n in range(UNSEEN + SEEN)]
        seen = [padded.shapes[r][np.lexsort(padded.shapes[r].T[::-1])] for r in rows[:SEEN]]
        for tokens, updates in itertools.product((150, 50, 0), (1_000, 10_000, 50_000)):
            prices = Prices(float(tokens))
            chosen = (seen, MICRO_BATCH, padded.largest, prices, COMPILE_TOKENS, updates)
            for allowed in (choose_shapes(*chosen, multiple=8), ()):
                cut = make_cut("cost", padded.largest, prices, allowed)
                windows = [
                    make_window(padded, r, MICRO_BATCH, cut, allowed=allowed, prices=prices)
                    for r in rows[UNSEEN:]
                ]
                real = sum(len(window.token_ids) for window in windows)
                results.append(
                    {"length": length, "step_tokens": tokens, "updates": updates}
                    | {"shapes": allowed}
                    | {"share": real / sum(window.padded_tokens for window in windows)}
                    | {"micro_steps": statistics.mean(w.micro_steps for w in windows)}
                )
    heads = ["length", "micro-step, tokens", "updates", "shapes", "non-padding share"]
    lines = [
        [
            r["length"],
            r["step_tokens"],
            r["updates"],
            ", ".join(f"{n} x {length}" for n, length in r["shapes"]) or "any",
            f"{r['share']:.3f}",
            f"{r['micro_steps']:.1f}",
        ]
        for r in results
    ]
    return results, table([*heads, "micro-steps"], lines)


# --- Compiling --------------------------------------------------------------------------


def compiled(*_: Path) -> tuple[Results, str]:
    """Compare updates and predictions that XLA compiles with those that it does not."""
    results: Results = []
    for rows, length in ((8, 128), (32, 128), (8, 512)):
        window = full_window(length, 2 * rows, rows)
        tokens = tf.reshape(window.token_ids[: rows * length], [rows, length])
        for work in ("update", "prediction"):
            runs: dict[Any, Callable[[], Any]] = {}
            first = {}
            for compile in (False, True):
                model, optimizer, _ = build("float32")
                update = make_update(TASK, model, optimizer, 0, accumulate=True, compile=compile)
                predict = tf.function(
                    lambda *x, model=model: model(inputs_of_padded(*x)),
                    jit_compile=compile,
                    autograph=False,
                )
                whole = tokens, tf.fill([rows], length)
                run = partial(update, window) if work == "update" else partial(predict, *whole)
                begin = time.perf_counter()
                run()
                first[compile], runs[compile] = time.perf_counter() - begin, run
            timed = interleaved(runs, 5)
            results.append(
                {"rows": rows, "length": length, "work": work}
                | {"compiling": first[True] - first[False]}
                | {"plain": timed[False], "compiled": timed[True]}
            )
    lines = [
        [
            f"{r['rows']} x {r['length']}",
            r["work"],
            f"{r['compiling']:.1f} s",
            f"{r['plain']:.2f} s",
            f"{r['compiled']:.2f} s",
            f"{r['compiled'] / r['plain']:.2f}",
        ]
        for r in results
    ]
    heads = ["shape", "work", "longer first run", "not compiled", "compiled", "ratio"]
    return results, table(heads, lines)


if __name__ == "__main__":
    parts = {
        "accumulation": accumulation,
        "matmul": matmul,
        "profile": profile,
        "cuts": cuts,
        "price": price,
        "determinism": determinism,
        "padding": padding,
        "shapes": shapes,
        "compiled": compiled,
    }
    run_part(__doc__.splitlines()[0], "speed", parts)
