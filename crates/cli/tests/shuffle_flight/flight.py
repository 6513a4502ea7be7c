"""Writers, readers and a checker of one shuffle, each a process that the test can kill. The calls are those of the example.

usage: flight.py VERB FOLDER NODES [ARGUMENT...]        NODES are joined by commas; FOLDER is for what is read

    start                          prints the handle
    put SHUFFLE WRITER OF          writes each OF-th input partition from WRITER on, and prints a line for each that is stored
    half SHUFFLE PARTITION         writes half of an input partition, prints a line, and waits for its end
    fail SHUFFLE PARTITION         fails half-way through it, in each way in which a program in Python does
    lacks SHUFFLE PARTITION        it lacks a whole attempt
    seal SHUFFLE
    read SHUFFLE READER OF         reads each OF-th partition into a file
    check                          all that went in came out, once, in order
    engines SHUFFLE                pandas, Polars and DuckDB read through Arrow streams what pyarrow has read
    combine                        rows and raw records of equal keys become one, of a shuffle each
    delete SHUFFLE
"""

import base64
import glob
import json
import os
import random
import struct
import sys
import time
import uuid

import pyarrow as pa
import pyarrow.flight as flight

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [os.path.join(HERE, "../../../../examples/shuffle-pyarrow"), os.path.join(HERE, "../../../../tests")]
import check_shuffle  # noqa: E402
import shuffle as example  # noqa: E402

SCHEMA = pa.schema([("price", pa.float64()), ("name", pa.dictionary(pa.int8(), pa.string())),
                    ("tags", pa.list_(pa.string())), ("place", pa.int64(), False)])
BY = [{"column": "price", "descending": True, "nulls_first": False},
      {"column": "name", "descending": False, "nulls_first": True}]
INPUTS, ROWS, PARTITIONS = 16, 20_000, 7


def rows(partition):
    """Few prices and names, so that many rows are equal in both; NaN, both zeros and nulls among them."""
    some = random.Random(partition)
    prices = [None, float("nan"), -0.0, 0.0, float("inf")] + [some.randrange(40) / 4 for _ in range(20)]
    prices = [some.choice(prices) for _ in range(ROWS)]
    names = [some.choice([None, "", "a", "ab", "é"]) for _ in prices]
    tags = [some.choice([None, [], ["x"], ["x", None]]) for _ in prices]
    places = range(partition * ROWS, (partition + 1) * ROWS)
    return pa.table([pa.array(prices), pa.array(names).dictionary_encode().cast(SCHEMA.field(1).type),
                     pa.array(tags, SCHEMA.field(2).type), pa.array(places)], schema=SCHEMA)


def key(price, name):
    """What Python compares: descending prices of which NaN is the largest and -0 is below 0, nulls last; then names, nulls first."""
    if price is None:
        number = (1,)
    elif price != price:
        number = (0, 0)
    else:
        number = (0, 1, -price, struct.pack(">d", price) == struct.pack(">d", -0.0))
    return number, (name is not None, (name or "").encode())


def columns(table):
    return [table.column(name).to_pylist() for name in SCHEMA.names]


def row_bytes(row):
    # Not as Python shows a number: all NaN are one.
    price = b"null" if row[0] is None else b"nan" if row[0] != row[0] else struct.pack(">d", row[0])
    return price + repr(row[1:]).encode()


def part(folder, number):
    return os.path.join(folder, f"part-{number:05}.arrow")


def put(folder, nodes, shuffle, writer, of):
    for partition in range(int(writer), INPUTS, int(of)):
        stored = example.put(nodes, shuffle, partition, rows(partition))
        assert stored["records"] == ROWS, stored
        print(partition, flush=True)


def begin_half(client, shuffle, partition):
    """An attempt with half of its batches."""
    path = flight.FlightDescriptor.for_path(shuffle, partition, uuid.uuid4().hex)
    writer, _ = client.do_put(path, SCHEMA, example.CALL)
    writer.write_table(rows(int(partition)).slice(0, ROWS // 2), max_chunksize=1_000)
    return writer


def half(folder, nodes, shuffle, partition):
    with flight.connect(nodes[0]) as client:
        writer = begin_half(client, shuffle, partition)
        print("half", flush=True)
        time.sleep(600)
        writer.close()


def fail(folder, nodes, shuffle, partition):
    with flight.connect(nodes[0]) as client:
        try:
            with begin_half(client, shuffle, partition):
                raise ValueError("half-way")
        except Exception as error:
            # The refusal takes the place of the exception.
            assert "count-differs" in str(error) or isinstance(error, ValueError), error
        # It is collected here.
        begin_half(client, shuffle, partition)
        left = begin_half(client, shuffle, partition)
        sys.exit(f"half-way, with {left}")


def lacks(folder, nodes, shuffle, partition):
    try:
        sealed = example.action(nodes, "seal", shuffle=shuffle, inputs=[int(partition)])
    except Exception as error:
        assert "inputs-lacking" in str(error), error
    else:
        raise AssertionError(f"a half is sealed: {sealed}")


def read(folder, nodes, shuffle, reader, of):
    endpoints = example.endpoints(nodes, shuffle, PARTITIONS)
    assert len(endpoints) == PARTITIONS, endpoints
    for number in range(int(reader), PARTITIONS, int(of)):
        table = example.get(nodes, endpoints[number])
        with pa.OSFile(part(folder, number), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)


def read_parts(folder):
    for path in sorted(glob.glob(os.path.join(folder, "part-*.arrow"))):
        with pa.OSFile(path) as file:
            yield path, pa.ipc.open_file(file).read_all()


def check(folder, nodes):
    before, after, order, sizes = check_shuffle.Count(), check_shuffle.Count(), check_shuffle.Order(), []
    for partition in range(INPUTS):
        for row in zip(*columns(rows(partition))):
            before.add(row_bytes(row))
    for path, table in read_parts(folder):
        assert table.schema.names == SCHEMA.names, table.schema
        for row in zip(*columns(table)):
            after.add(row_bytes(row))
            order.add(key(row[0], row[1]), row[3], path)
        sizes.append(table.num_rows)
    before.same_as(after)
    check_shuffle.equal_parts(sizes)
    assert len(sizes) == PARTITIONS, sizes


def engines(folder, nodes, shuffle):
    import duckdb
    import polars

    expected = pa.concat_tables([table for _, table in read_parts(folder)]).column("place").to_pylist()

    def streams():
        """The partitions as streams of batches, one after the other; each is read before the next begins."""
        for endpoint in example.endpoints(nodes, shuffle, PARTITIONS):
            with flight.connect(nodes[0]) as client:
                yield client.do_get(endpoint.ticket).to_reader()

    by_pandas, by_polars, by_duckdb = [], [], []
    for stream in streams():
        by_pandas += stream.read_pandas()["place"].tolist()
    for stream in streams():
        by_polars += polars.from_arrow(stream)["place"].to_list()
    for stream in streams():
        by_duckdb += [row[3] for row in duckdb.from_arrow(stream).fetchall()]
    for engine, places in [("pandas", by_pandas), ("Polars", by_polars), ("DuckDB", by_duckdb)]:
        assert places == expected, f"{engine} has read {len(places)} other rows"


def combined(nodes, inputs, start):
    """What is read, in three partitions, of a shuffle of some tables that combines."""
    shuffle = example.action(nodes, "start", **start)["handle"]
    for partition, table in enumerate(inputs):
        assert example.put(nodes, shuffle, partition, table)["records"] == table.num_rows
    sealed = example.action(nodes, "seal", shuffle=shuffle, inputs=len(inputs))["records"]
    assert sealed < sum(table.num_rows for table in inputs) / 10, f"{sealed} records are stored"
    command = json.dumps({"shuffle": shuffle, "partitions": 3, "combine": True})
    named = flight.FlightDescriptor.for_command(command)
    info = example.at_any(nodes, lambda client: client.get_flight_info(named, example.CALL))
    assert info.total_records == -1 and len(info.endpoints) == 3, info
    table = pa.concat_tables([example.get(nodes, endpoint) for endpoint in info.endpoints])
    example.action(nodes, "delete", shuffle=shuffle)
    return table


def combine(folder, nodes):
    schema = pa.schema([("key", pa.int64()), ("amount", pa.int32()), ("least", pa.float64()), ("rows", pa.int64())])
    inputs = []
    for partition in range(4):
        some = random.Random(partition)
        amounts = [some.choice([None, 1, -5, 2_000]) for _ in range(5_000)]
        inputs.append(pa.table([[some.randrange(50) for _ in amounts], amounts, [some.random() for _ in amounts],
                                [some.choice([None, 7]) for _ in amounts]], schema=schema))
    text = base64.b64encode(schema.serialize().to_pybytes()).decode()
    by = {"amount": "sum", "least": "min", "rows": "count"}
    found = combined(nodes, inputs, {"schema": text, "by": ["key"], "combine": by})
    everything = pa.concat_tables(inputs).group_by("key")
    expected = everything.aggregate([("amount", "sum"), ("least", "min"), ("rows", "count")]).sort_by("key")
    names = ["key", "amount_sum", "least_min", "rows_count"]
    assert [found.column(at).to_pylist() for at in range(4)] == [expected.column(name).to_pylist() for name in names]

    keys = [bytes([number % 50]) for number in range(5_000)]
    raw = pa.table({"key": keys, "value": [number.to_bytes(8, "little") for number in range(5_000)]})
    found = combined(nodes, [raw, raw], {"kind": "raw", "combine": "sum-i64"})
    sums = [(2 * sum(range(key, 5_000, 50))).to_bytes(8, "little") for key in range(50)]
    assert found.column("key").to_pylist() == [bytes([key]) for key in range(50)]
    assert found.column("value").to_pylist() == sums


def main(verb, folder, nodes, *arguments):
    nodes = nodes.split(",")
    if verb == "start":
        print(example.start(nodes, SCHEMA, BY, INPUTS))
    elif verb == "seal":
        sealed = example.action(nodes, "seal", shuffle=arguments[0], inputs=INPUTS)
        assert sealed["records"] == INPUTS * ROWS, sealed
    elif verb == "delete":
        example.action(nodes, "delete", shuffle=arguments[0])
    else:
        verbs = [put, half, fail, lacks, read, check, engines, combine]
        {one.__name__: one for one in verbs}[verb](folder, nodes, *arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
