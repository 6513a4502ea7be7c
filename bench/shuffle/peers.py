#!/usr/bin/env python3
"""Orders a file of records with Polars, DuckDB and Spark, and prints a line of JSON for each.

usage: peers.py VENV INPUT FOLDER NAME...

INPUT has records of 100 bytes, of which 10 are the key. VENV is made if it is not there, and what can be had of PyPI is installed into it.
Each peer orders all records once unmeasured, so that it is warm, and then three times; the median counts, as core-seconds (user and system) of
its process and all that it has started. Polars and DuckDB have the records in memory as Arrow columns; Spark reads a Parquet file
without compression, which the page cache has. What comes out is not kept: Polars drops its result, DuckDB hands it out in batches
that are dropped, Spark writes to its `noop` sink. The number of rows and the order of the result are checked unmeasured.
"""

import json
import os
import pathlib
import subprocess
import sys
import time

KEY, RECORD = 10, 100
ROUNDS = 3
PACKAGES = {"polars": ["polars"], "duckdb": ["duckdb"], "spark": ["pyspark>=4,<5"], "hail": ["hail==0.2.139"]}
# An installation that takes longer, in seconds, is given up.
PATIENCE = 900


def install(venv, names):
    """The Python of the environment, and why a peer is not in it."""
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, timeout=PATIENCE)
    lacks = {}
    for name in ["", *names]:
        packages = PACKAGES.get(name, ["pyarrow", "numpy"])
        try:
            done = subprocess.run(
                [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages],
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=PATIENCE,
            )
        except subprocess.TimeoutExpired:
            lacks[name] = f"pip takes more than {PATIENCE} s"
            continue
        if done.returncode:
            lacks[name] = (done.stderr.strip().splitlines() or ["pip fails"])[-1]
    return python, lacks


def family():
    """This process and all that descend from it."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = pathlib.Path("/proc", entry, "stat").read_text()
            except OSError:
                continue
            parents[int(entry)] = int(stat.rsplit(")", 1)[1].split()[1])
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def core_seconds():
    total = 0
    for pid in family():
        try:
            fields = pathlib.Path("/proc", str(pid), "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        # Its own time, and that of children that have ended.
        total += sum(map(int, fields[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


def measure(name, version, work):
    work()
    figures = []
    for _ in range(ROUNDS):
        core, wall = core_seconds(), time.monotonic()
        work()
        figures.append((core_seconds() - core, time.monotonic() - wall))
    core, wall = sorted(figures)[len(figures) // 2]
    print(json.dumps({"name": name, "version": version, "core_seconds": core, "wall_seconds": wall}), flush=True)


def table(path):
    """The records as two columns of Arrow."""
    import numpy
    import pyarrow

    records = numpy.fromfile(path, dtype=numpy.uint8).reshape(-1, RECORD)

    def column(part):
        width = part.shape[1]
        data = pyarrow.py_buffer(numpy.ascontiguousarray(part))
        offsets = pyarrow.py_buffer((numpy.arange(len(part) + 1, dtype=numpy.int64) * width))
        return pyarrow.Array.from_buffers(pyarrow.large_binary(), len(part), [None, offsets, data])

    return pyarrow.table({"key": column(records[:, :KEY]), "value": column(records[:, KEY:])})


def check(name, rows, keys, expected):
    assert rows == expected, f"{name}: {rows} rows of {expected}"
    assert all(one <= other for one, other in zip(keys, keys[1:])), f"{name}: out of order"


def polars(path, _folder):
    import polars

    frame = polars.from_arrow(table(path))
    out = frame.sort("key")
    check("polars", out.height, out["key"].to_list(), frame.height)
    del out
    measure("polars", polars.__version__, lambda: frame.sort("key"))


def duckdb(path, folder):
    import duckdb

    records = table(path)
    base = duckdb.connect()
    base.execute(f"set temp_directory = '{folder}/duckdb'")
    base.register("records", records)
    base.execute("create table loaded as select * from records")

    def ordered():
        result = base.sql("select key, value from loaded order by key")
        # Its name in DuckDB 1.5, and before.
        reader = getattr(result, "to_arrow_reader", None) or result.fetch_record_batch
        return reader(100_000)

    def work():
        for _ in ordered():
            pass

    rows, keys = 0, []
    for batch in ordered():
        rows += batch.num_rows
        keys += batch.column(0).to_pylist()
    check("duckdb", rows, keys, records.num_rows)
    del keys
    measure("duckdb", duckdb.__version__, work)


def spark(path, folder):
    import pyarrow.parquet
    import pyspark
    from pyspark.sql import SparkSession

    file, rows = f"{folder}/records.parquet", table(path)
    pyarrow.parquet.write_table(
        rows.cast(pyarrow.schema({"key": pyarrow.binary(), "value": pyarrow.binary()})),
        file, compression="none", use_dictionary=False, write_statistics=False,
    )
    count = rows.num_rows
    del rows
    session = (
        SparkSession.builder.master("local[*]")
        .config("spark.driver.memory", "8g")
        .config("spark.local.dir", f"{folder}/spark")
        .config("spark.sql.shuffle.partitions", "256")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    frame = session.read.parquet(file)

    def ordered():
        return frame.repartitionByRange(256, "key").sortWithinPartitions("key")

    assert ordered().count() == count, "spark: rows are missing"
    measure("spark", pyspark.__version__, lambda: ordered().write.format("noop").mode("overwrite").save())
    session.stop()


def main():
    venv, path, folder, *names = sys.argv[1:]
    if os.environ.get("BENCH_SHUFFLE_PEER"):
        {"polars": polars, "duckdb": duckdb, "spark": spark}[names[0]](path, folder)
        return 0
    python, lacks = install(pathlib.Path(venv), names)
    for name in names:
        why = lacks.get("") or lacks.get(name)
        if why is None:
            run = subprocess.run(
                [str(python), __file__, venv, path, folder, name],
                env={**os.environ, "BENCH_SHUFFLE_PEER": "1"}, stderr=subprocess.PIPE, text=True,
            )
            why = (run.stderr.strip().splitlines() or ["it failed"])[-1] if run.returncode else None
        if why is not None:
            print(json.dumps({"name": name, "left_out": why}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
