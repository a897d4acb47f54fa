"""Measures `bertaccum serve`: throughput and latency under load, and memory after bad requests.

    python benchmarks/serve.py load        # 5 minutes on 2 cores
    python benchmarks/serve.py malformed   # 1 minute

load: BERT-Small with random weights (which do not change the speed) and 128 tokens classifies real
Yelp reviews, one review per request. Each client sends its next request when it has an answer. The
service batches the reviews that wait or, for comparison, predicts them one at a time.

malformed: 10,000 malformed requests. Reports the answers by status, and the resident memory before
and after each half of them.
"""

from __future__ import annotations

import csv
import http.client
import itertools
import json
import random
import re
import subprocess
import sys
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
from tools import Results, random_run, run_part, say, table

CLIENTS = (1, 16, 64)
# Time for each number of clients, after a tenth of it that is not measured.
SECONDS = 30.0
REVIEWS = 5000
MALFORMED = 10_000
MODES = {"batches": [], "one at a time": ["--batch-tokens", "1", "--batch-delay-ms", "0"]}
VALID = b'{"texts": ["The food was great.", "Never again."]}'
PARTS = [
    *(b"[", b"{", b"]", b"}", b'"', b":", b",", b"\\", b"\\ud800", b"\\u0000", b"\0", b"\xff"),
    *(b"NaN", b"1e999", b"9" * 5000, b"[" * 50_000, b'{"a":' * 3000, b"null", b"\xed\xa0\x80"),
]


def reviews(shared: Path) -> list[str]:
    """Return real reviews, in the order of the archive."""
    archive = shared / "data/yelp/yelp_review_polarity_csv.tgz"
    with tarfile.open(archive) as files:
        file = files.extractfile("yelp_review_polarity_csv/test.csv")
        assert file is not None
        rows = csv.reader(line.decode() for line in file)
        return [row[1] for row in itertools.islice(rows, REVIEWS)]


@contextmanager
def served(run: Path, options: list[str]) -> Iterator[int]:
    """Yield the port of a service that runs in another process."""
    command = [sys.executable, "-m", "bertaccum", "serve", "--run", str(run), "--port", "0"]
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"serving at http://.+?:(\d+)", line):
                yield int(found[1])
                return
        raise SystemExit("the service did not start")
    finally:
        process.terminate()
        process.wait()


def request(connection: http.client.HTTPConnection, body: bytes) -> int:
    """Send a request and return the status of the answer."""
    connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    return answer.status


def metric(port: int, name: str) -> float:
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))


def latencies(port: int, clients: int, texts: list[str], seconds: float) -> list[float]:
    """Return the time of each answer in seconds, while several clients send requests."""
    found: list[list[float]] = [[] for _ in range(clients)]
    end = time.perf_counter() + seconds

    def client(number: int) -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
            for text in itertools.cycle(texts[number::clients]):
                start = time.perf_counter()
                if start > end:
                    return
                status = request(connection, json.dumps({"texts": [text]}).encode())
                if status != 200:
                    raise SystemExit(f"status {status}")
                found[number].append(time.perf_counter() - start)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [one for times in found for one in times]


def load(shared: Path, out: Path) -> tuple[Results, str]:
    run, texts, results = random_run(shared, out, "bert-small"), reviews(shared), []
    for mode, options in MODES.items():
        with served(run, options) as port:
            for clients in CLIENTS:
                latencies(port, clients, texts, SECONDS / 10)
                names = ("bertaccum_texts_total", "bertaccum_batches_total")
                before = [metric(port, name) for name in names]
                start = time.perf_counter()
                times = latencies(port, clients, texts, SECONDS)
                seconds = time.perf_counter() - start
                done, batches = (
                    metric(port, n) - old for n, old in zip(names, before, strict=True)
                )
                found = {
                    "mode": mode,
                    "clients": clients,
                    "requests": len(times),
                    "per_second": len(times) / seconds,
                    "p50_seconds": float(np.percentile(times, 50)),
                    "p99_seconds": float(np.percentile(times, 99)),
                    "texts_per_batch": done / batches,
                }
                say(str(found))
                results.append(found)
    heads = ["clients", "reviews", "requests/s", "p50", "p99", "texts/batch"]
    rows = [
        [
            r["clients"],
            r["mode"],
            f"{r['per_second']:.1f}",
            f"{1000 * r['p50_seconds']:.0f} ms",
            f"{1000 * r['p99_seconds']:.0f} ms",
            f"{r['texts_per_batch']:.1f}",
        ]
        for r in sorted(results, key=lambda r: r["clients"])
    ]
    return results, table(heads, rows)


def damaged(rng: random.Random) -> bytes:
    """Return the body of a request after one to five random edits."""
    body = bytearray(VALID)
    for _ in range(rng.randint(1, 5)):
        start = rng.randrange(len(body) + 1)
        body[start : start + rng.choice([0, 0, 1, 5])] = rng.choice([*PARTS, rng.randbytes(3)])
    return bytes(body)


def malformed(shared: Path, out: Path) -> tuple[Results, str]:
    rng, statuses, memory = random.Random(0), Counter[int](), []
    name = "process_resident_memory_bytes"
    with served(random_run(shared, out, "bert-small"), []) as port:
        with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
            for number in range(MALFORMED):
                if number % (MALFORMED // 2) == 0:
                    memory.append(metric(port, name))
                statuses[request(connection, damaged(rng))] += 1
        memory.append(metric(port, name))
    by_status = {str(status): count for status, count in sorted(statuses.items())}
    results = [{"requests": MALFORMED, "statuses": by_status, "resident_bytes": memory}]
    heads = ["requests", *by_status, "memory before", "after half", "at the end"]
    sizes = [f"{one / 2**20:.0f} MiB" for one in memory]
    return results, table(heads, [[MALFORMED, *by_status.values(), *sizes]])


if __name__ == "__main__":
    run_part(__doc__.splitlines()[0], "serve", {"load": load, "malformed": malformed})
