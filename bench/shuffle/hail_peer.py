#!/usr/bin/env python3
"""Orders rows with Hail, and prints a line of JSON for each input and each of its two ways.

usage: hail_peer.py VENV FOLDER INPUT=ROWS...        INPUT is `integers` (64 bits) or `rows` (64 bits beside 4,096 bytes)

VENV is made if it is not there, and gets Hail of PyPI, which brings a Spark of its own: so it is none that others have. Hail makes the
rows as it orders them, in 100 partitions; their keys are all numbers below that of the rows, each once, without order. `spark` is the way that Hail
takes by itself, Spark's shuffle; `own` is the sort through files that it has since it gave up its shuffle service (`use_new_shuffle`).
Each orders all rows once unmeasured, so that it is warm, and then once more. `_force_count` computes each ordered row, and keeps none.
The number of rows and their order are checked unmeasured. Core-seconds are of all processes, user and system.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import peers

PARTITIONS = 100
# As clients.py has them: a row of the number i has the key (i * FACTOR) % rows, and a value of so many numbers of 32 bits, i * j.
FACTOR, NUMBERS = 7_368_787, 1_024
WAYS = {"spark": None, "own": "1"}
# All of an input, in seconds.
PATIENCE = 3_600


def unordered(hl, name, count):
    table = hl.utils.range_table(count, n_partitions=PARTITIONS).key_by()
    at = hl.int64(table.idx) * hl.int64(FACTOR) % hl.int64(count)
    if name == "integers":
        return table.select(at=at)
    return table.select(at=at, value=hl.range(NUMBERS).map(lambda j: table.idx * j))


def check(hl, ordered, count):
    """The key of a row is its place: so all are there, and in order."""
    rows = ordered.add_index("place")
    assert rows.aggregate(hl.agg.count_where(rows.place == rows["at"])) == count, "rows are missing, or out of order"


def run(folder, name, count):
    import hail as hl

    # It is read when the machine of Java starts.
    conf = {"spark.driver.memory": "8g", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    hl.init(
        backend="spark", master="local[*]", quiet=True, spark_conf=conf, log=f"{folder}/hail.log",
        tmp_dir=f"{folder}/hail", local_tmpdir=f"{folder}/hail-local",
    )
    table = unordered(hl, name, count)
    for way, flag in WAYS.items():
        hl._set_flags(use_new_shuffle=flag)
        ordered = table.order_by("at")
        check(hl, ordered, count)
        for _ in range(2):
            core, wall = peers.core_seconds(), time.monotonic()
            assert ordered._force_count() == count, f"hail: of {count} rows some are missing"
            core, wall = peers.core_seconds() - core, time.monotonic() - wall
        say(name=name, way=way, version=hl.version().split("-")[0], core_seconds=core, wall_seconds=wall)
    hl.stop()


def say(**figures):
    print(json.dumps(figures), flush=True)


def child(python, folder, name, count):
    """Why there are no figures; none: there are. What it has started ends with it."""
    log = pathlib.Path(folder, f"hail-{name}.err")
    with log.open("w") as errors:
        process = subprocess.Popen(
            [str(python), __file__, "-", folder, f"{name}={count}"],
            env={**os.environ, "BENCH_SHUFFLE_PEER": "1"}, stderr=errors, start_new_session=True,
        )
        try:
            code, why = process.wait(PATIENCE), "it failed"
        except subprocess.TimeoutExpired:
            code, why = 1, f"it takes more than {PATIENCE} s"
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
    said = [line for line in log.read_text().strip().splitlines() if "Error" in line or "Exception" in line]
    return (said or [why])[-1] if code else None


def main():
    venv, folder, *inputs = sys.argv[1:]
    inputs = [(name, int(count)) for name, count in (word.split("=") for word in inputs)]
    if os.environ.get("BENCH_SHUFFLE_PEER"):
        run(folder, *inputs[0])
        return 0
    python, lacks = peers.install(pathlib.Path(venv), ["hail"])
    for name, count in inputs:
        why = lacks.get("") or lacks.get("hail") or child(python, folder, name, count)
        if why is not None:
            say(name=name, left_out=why)
    return 0


if __name__ == "__main__":
    sys.exit(main())
