#!/usr/bin/env python3
"""Sorts the rows of several processes by two columns and reads them in three equal partitions: with pyarrow and nothing of Partage.

usage: shuffle.py [NODE...]        nodes of a pool, as grpc://host:port; without any, those of `partage up`
"""

import base64
import json
import multiprocessing
import random
import sys
import time
import uuid
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import pyarrow as pa
import pyarrow.flight as flight

NODES = ["grpc://127.0.0.1:7700", "grpc://127.0.0.1:7701", "grpc://127.0.0.1:7702"]
SCHEMA = pa.schema([("price", pa.float64()), ("name", pa.string()), ("order", pa.int64())])
BY = [{"column": "price", "descending": True, "nulls_first": False},
      {"column": "name", "descending": False, "nulls_first": False}]
INPUTS, PARTITIONS = 8, 3
# Of one call: a node that is away without saying so, such as a paused one, is given up after that.
CALL = flight.FlightCallOptions(timeout=60)


def at_any(nodes, call):
    """Calls one node after the other, until one has done it. UNAVAILABLE means: again."""
    for turn in range(30):
        try:
            with flight.connect(nodes[turn % len(nodes)]) as client:
                return call(client)
        except (flight.FlightUnavailableError, flight.FlightTimedOutError, OSError) as error:
            why = error
            time.sleep(min(0.05 * 2 ** turn, 2))
    raise why


def action(nodes, name, **body):
    """What a node answers to an action. Both are JSON."""
    def call(client):
        answers = list(client.do_action(flight.Action(name, json.dumps(body).encode()), CALL))
        return json.loads(answers[0].body.to_pybytes()) if answers else None
    return at_any(nodes, call)


def start(nodes, schema, by, partitions):
    """Starts a shuffle; says its handle, by which everybody names it."""
    text = base64.b64encode(schema.serialize().to_pybytes()).decode()
    return action(nodes, "start", schema=text, by=by, partitions=partitions)["handle"]


def put(nodes, shuffle, partition, table):
    """Stores an input partition. Of all its attempts that end, one is read: so it may run as often as it likes."""
    def attempt(client):
        path = flight.FlightDescriptor.for_path(shuffle, str(partition), uuid.uuid4().hex)
        writer, reader = client.do_put(path, table.schema, CALL)
        with writer:
            writer.write_table(table, max_chunksize=16_384)
            # Without it the attempt is not whole: pyarrow ends the stream in order, too, when this block is left by an exception.
            writer.write_metadata(json.dumps({"records": table.num_rows}).encode())
            writer.done_writing()
            # It comes when the rows are on the disks of several nodes, and not before.
            stored = reader.read()
        return json.loads(stored.to_pybytes())
    return at_any(nodes[partition % len(nodes):] + nodes[:partition % len(nodes)], attempt)


def endpoints(nodes, shuffle, partitions):
    """Where the partitions are, in order."""
    path = flight.FlightDescriptor.for_path(shuffle, str(partitions))
    return at_any(nodes, lambda client: client.get_flight_info(path, CALL)).endpoints


def get(nodes, endpoint):
    """The rows of a partition, from a node that has them, else from any."""
    holders = [location.uri.decode() for location in endpoint.locations]
    return at_any(holders + nodes, lambda client: client.do_get(endpoint.ticket, CALL).read_all())


def rows(partition):
    """Some rows, the same whenever the partition is made."""
    some = random.Random(partition)
    prices = [some.choice([None, 0.5, 9.99, some.uniform(1, 100)]) for _ in range(10_000)]
    names = [some.choice(["apple", "pear", "plum"]) for _ in prices]
    orders = range(partition * len(prices), (partition + 1) * len(prices))
    return pa.table([prices, names, orders], schema=SCHEMA)


def put_rows(nodes, shuffle, partition):
    return put(nodes, shuffle, partition, rows(partition))["records"]


def put_all(nodes, shuffle):
    """Stores all input partitions, from four processes. If one dies, others write those again whose end nobody has heard of."""
    stored = {}
    while len(stored) < INPUTS:
        # Not by fork: gRPC's threads would be missing in the children.
        with ProcessPoolExecutor(4, multiprocessing.get_context("spawn")) as processes:
            try:
                left = [partition for partition in range(INPUTS) if partition not in stored]
                puts = [(partition, processes.submit(put_rows, nodes, shuffle, partition)) for partition in left]
                for partition, one in puts:
                    stored[partition] = one.result()
            except BrokenProcessPool:
                print("a process has died: its input partitions are written again")
    return sum(stored.values())


def main(nodes):
    shuffle = start(nodes, SCHEMA, BY, PARTITIONS)
    print("stored", put_all(nodes, shuffle), "rows of", INPUTS, "input partitions")
    print("sealed", action(nodes, "seal", shuffle=shuffle, inputs=INPUTS)["records"], "rows")
    for number, endpoint in enumerate(endpoints(nodes, shuffle, PARTITIONS)):
        table = get(nodes, endpoint)
        first, last = table.slice(0, 1).to_pylist()[0], table.slice(table.num_rows - 1).to_pylist()[0]
        print(f"partition {number}: {table.num_rows} rows, from {first} to {last}")
    action(nodes, "delete", shuffle=shuffle)


if __name__ == "__main__":
    main(sys.argv[1:] or NODES)
