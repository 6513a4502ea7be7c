#!/usr/bin/env python3
"""Writes the files of this folder with the tools of others: Hadoop's Java classes (out of pyspark) and pyarrow.

    python3 -m venv venv && venv/bin/pip install pyspark pyarrow
    venv/bin/python vectors/datasets/make.py                    writes them here; needs a JDK, 17 or later
    venv/bin/python vectors/datasets/make.py LARGE COUNT        also a SequenceFile of COUNT records, for measuring

SequenceFiles get another sync marker each time, so that they are never the same twice.
"""

import datetime
import decimal
import pathlib
import subprocess
import sys
import tempfile

import pyarrow
import pyarrow.parquet
import pyspark

HERE = pathlib.Path(__file__).resolve().parent


def sequences(folder, large):
    jars = pathlib.Path(pyspark.__file__).parent / "jars"
    with tempfile.TemporaryDirectory() as classes:
        sources = [HERE / "ZStandardCodec.java", HERE / "Sequences.java"]
        subprocess.run(["javac", "-cp", f"{jars}/*", "-d", classes, *sources], check=True)
        # Ours first: Hadoop's class of the same name is in the jars.
        subprocess.run(["java", "-cp", f"{classes}:{jars}/*", "Sequences", folder, *large], check=True)


def parquets(folder):
    count = 60
    table = pyarrow.table(
        {
            "id": [f"key-{i}" for i in range(count)],
            "number": pyarrow.array(range(count), pyarrow.int64()),
            "bytes": pyarrow.array([bytes([i, 255]) for i in range(count)], pyarrow.binary()),
            "text": [None if i % 3 == 0 else f"value {i}, " * (i % 7) for i in range(count)],
        }
    )
    for codec in ["none", "snappy", "gzip", "lz4", "zstd"]:
        # Several row groups and pages, with and without dictionaries, in both forms of pages.
        pyarrow.parquet.write_table(
            table,
            folder / f"table-{codec}.parquet",
            compression=codec,
            row_group_size=25,
            data_page_size=64,
            use_dictionary=codec in ["snappy", "gzip"],
            data_page_version="2.0" if codec in ["none", "zstd"] else "1.0",
        )
    types = pyarrow.table(
        {
            "k": pyarrow.array([1], pyarrow.uint32()),
            "yes": [True],
            "real": [0.1],
            "day": [datetime.date(2024, 2, 29)],
            "at": pyarrow.array([datetime.datetime(2024, 2, 29, 1, 2, 3)], pyarrow.timestamp("ms")),
            "price": pyarrow.array([decimal.Decimal("-12.50")], pyarrow.decimal128(9, 2)),
            "list": [[1, None, 3]],
            "group": [{"a": "x", "b": [{"c": 1}]}],
            "map": pyarrow.array([[("p", 1), ("q", 2)]], pyarrow.map_(pyarrow.string(), pyarrow.int32())),
            "nothing": pyarrow.array([None], pyarrow.string()),
        }
    )
    pyarrow.parquet.write_table(types, folder / "types.parquet")
    small = pyarrow.table({"k": ["a", "b"], "v": ["1", "2"]})
    pyarrow.parquet.write_table(small, folder / "small.parquet", store_schema=False, write_statistics=False)


if __name__ == "__main__":
    sequences(HERE, sys.argv[1:])
    parquets(HERE)
