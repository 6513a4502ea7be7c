#!/usr/bin/env python3
"""Clients of Arrow Flight that write rows and read them, each role a process of its own: with pyarrow and nothing of Partage.

usage: clients.py install VENV                                       pyarrow goes into an environment; says its Python
       clients.py start NODES INPUT PARTITIONS                       starts a shuffle; says its handle
       clients.py write NODES HANDLE INPUT ROWS INPUTS MADE I/N      writes the input partitions I, I + N, ...
       clients.py read NODES HANDLE INPUT ROWS INPUTS PARTITIONS DEEP   seals, reads all partitions in order, checks them
       clients.py delete NODES HANDLE

NODES are addresses with commas between. The handle `-` is the floor: a server that gives each input partition back as it was put, and
neither seals nor orders. A writer and a reader say `ready`, wait for a line, work, say `done ...`, and wait for another one.

MADE is `before`: rows are made before `ready`; or `within`: they are made as they are written. DEEP is 1 where each value of each row
is compared with what it must be, and 0 where rows are counted, their order is looked at, that it is stable, and the sum of their numbers.
"""

import base64
import json
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

# Without any, the installer is what runs: it needs neither.
if sys.argv[1:2] != ["install"]:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.flight as flight

# Partitions that a reader has at a time, as ours over frames.
AT_ONCE = 6
# Rows of a batch, of about so many bytes.
BATCH_BYTES = 2 << 20
# Of one call, in seconds; a call that fails so that it may be run again is, so often.
CALL, TURNS = 120, 30
# Numbers of 64 bits without order: those of splitmix64.
STEP, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
# As hail_peer.py has them: a row of the number i has the key (i * FACTOR) % rows, and a value of so many numbers of 32 bits, i * j.
FACTOR, NUMBERS = 7_368_787, 1_024


def mix(numbers):
    """A number without order for each number."""
    with np.errstate(over="ignore"):
        some = numbers.astype(np.uint64) * np.uint64(STEP)
        some = (some ^ (some >> np.uint64(30))) * np.uint64(FIRST)
        some = (some ^ (some >> np.uint64(27))) * np.uint64(SECOND)
        return some ^ (some >> np.uint64(31))


class Integers:
    """One column of 64 bits: each number below that of the rows, once."""

    def __init__(self, rows):
        self.rows = rows
        self.schema = pa.schema([("at", pa.int64())])
        self.by = [{"column": "at"}]

    def keys(self, numbers):
        return numbers * FACTOR % self.rows

    def make(self, numbers):
        return pa.table([pa.array(self.keys(numbers))], schema=self.schema)

    def of(self, first, count):
        """The rows of these ranks."""
        return pa.table([pa.array(np.arange(first, first + count))], schema=self.schema)

    def check(self, table, first, is_deep):
        """The partition must have exactly the rows of its ranks. Gives its sum."""
        del is_deep
        keys = table.column("at").to_numpy()
        assert np.array_equal(keys, np.arange(first, first + len(keys))), f"the rows behind {first} have other keys"
        return int(keys.sum())

    def is_ordered(self, table):
        """Each key is its rank, or the check has failed."""
        return True

    def sum(self):
        return self.rows * (self.rows - 1) // 2


class Wide(Integers):
    """The same with 4,096 bytes beside each key."""

    def __init__(self, rows):
        super().__init__(rows)
        self.schema = pa.schema([("at", pa.int64()), ("value", pa.binary(4 * NUMBERS))])

    def make(self, numbers):
        return pa.table([pa.array(self.keys(numbers)), self.values(numbers)], schema=self.schema)

    def values(self, numbers):
        # Products of 32 bits that wrap around, as those of Hail do.
        numbers = np.multiply.outer(numbers.astype(np.int32), np.arange(NUMBERS, dtype=np.int32))
        return pa.Array.from_buffers(self.schema.field("value").type, len(numbers), [None, pa.py_buffer(numbers)])

    def check(self, table, first, is_deep):
        total = super().check(table, first, is_deep)
        if is_deep:
            # The number of which the key is: by the inverse of the factor.
            back = pow(FACTOR, -1, self.rows) if self.rows > 1 else 0
            numbers = np.array([key * back % self.rows for key in range(first, first + table.num_rows)], dtype=np.int64)
            values = table.column("value").combine_chunks()
            assert values.equals(self.values(numbers)), f"the rows behind {first} have other values"
        return total


class Mixed:
    """Ten columns of ten types, each a function of the number of the row; sorted by two of them."""

    def __init__(self, rows):
        self.rows = rows
        self.schema = pa.schema([
            ("number", pa.int64()), ("small", pa.int32()), ("share", pa.float64()), ("is_even", pa.bool_()),
            ("day", pa.date32()), ("time", pa.timestamp("us")), ("name", pa.string()), ("text", pa.string()),
            ("price", pa.decimal128(18, 2)), ("some", pa.int64()),
        ])
        self.by = [{"column": "name"}, {"column": "time", "descending": True}]
        hexes = [f"{number:016x}" for number in mix(np.arange(4 * 4_096)).tolist()]
        self.names = pa.array([hexes[i][: 4 + i % 8] for i in range(1_000)])
        self.texts = pa.array(["".join(hexes[i : i + 4])[: 40 + i % 25] for i in range(4_096)])

    def make(self, numbers):
        lots, others = mix(numbers), mix(numbers + self.rows)

        def draw(shift, below):
            return ((lots >> np.uint64(shift)) % np.uint64(below)).astype(np.int64)

        cents = np.empty((len(numbers), 2), dtype=np.int64)
        cents[:, 0] = draw(7, 10**12) - 5 * 10**11
        cents[:, 1] = cents[:, 0] >> 63
        columns = [
            pa.array(numbers),
            pa.array((lots >> np.uint64(32)).astype(np.uint32).view(np.int32)),
            pa.array((lots >> np.uint64(11)).astype(np.float64) / 2**53),
            pa.array((lots & np.uint64(1)) == 0),
            pa.array(draw(5, 20_000).astype(np.int32)).cast(pa.date32()),
            pa.array(1_700_000_000_000_000 + draw(17, 1_000) * 1_000_000).cast(pa.timestamp("us")),
            self.names.take(pa.array((others % np.uint64(len(self.names))).astype(np.int64))),
            self.texts.take(pa.array(((others >> np.uint64(20)) % np.uint64(len(self.texts))).astype(np.int64))),
            pa.Array.from_buffers(pa.decimal128(18, 2), len(numbers), [None, pa.py_buffer(cents)]),
            pa.array(others.view(np.int64), mask=(lots >> np.uint64(40)) % np.uint64(10) == 0),
        ]
        return pa.table(columns, schema=self.schema)

    def check(self, table, first, is_deep):
        del first
        table = table.combine_chunks()
        numbers = table.column("number").to_numpy()
        if is_deep:
            assert table.equals(self.make(numbers)), "rows have other values than were written"
        return int(mix(numbers).sum(dtype=np.uint64))

    def is_ordered(self, table):
        """By the two columns; rows that are equal in both by their number, as the earlier input partition has the smaller ones."""
        if table.num_rows < 2:
            return True
        table = table.combine_chunks()
        one, other = table.slice(0, table.num_rows - 1), table.slice(1)
        names, times, numbers = ([half.column(name) for half in (one, other)] for name in ("name", "time", "number"))
        last = pc.and_(pc.equal(*times), pc.less(*numbers))
        rest = pc.and_(pc.equal(*names), pc.or_(pc.greater(*times), last))
        return pc.all(pc.or_(pc.less(*names), rest)).as_py()

    def sum(self):
        total = 0
        for first in range(0, self.rows, 1_000_000):
            total += int(mix(np.arange(first, min(first + 1_000_000, self.rows))).sum(dtype=np.uint64))
        return total % 2**64


INPUTS = {"integers": Integers, "rows": Wide, "mixed": Mixed}


class Nodes:
    """Connections to nodes, each opened once by each thread."""

    def __init__(self, word):
        self.nodes = [f"grpc://{node}" for node in word.split(",")]
        self.own = threading.local()
        self.again = 0

    def client(self, node):
        clients = self.own.__dict__.setdefault("clients", {})
        if node not in clients:
            clients[node] = flight.connect(node)
        return clients[node]

    def call(self, call, nodes):
        """Calls one node after the other until one has done it."""
        why = None
        for turn in range(TURNS):
            node = nodes[turn % len(nodes)]
            try:
                return call(self.client(node))
            except (flight.FlightUnavailableError, flight.FlightTimedOutError, OSError) as error:
                why = error
                self.own.__dict__.get("clients", {}).pop(node, None)
                self.again += 1
                time.sleep(min(0.05 * 2**turn, 2))
        raise why

    def action(self, name, **body):
        def act(client):
            action = flight.Action(name, json.dumps(body).encode())
            answers = list(client.do_action(action, options()))
            return json.loads(answers[0].body.to_pybytes()) if answers else None
        return self.call(act, self.nodes)

    def put(self, handle, partition, table):
        batch_rows = max(1, BATCH_BYTES * table.num_rows // max(table.nbytes, 1))

        def attempt(client):
            path = flight.FlightDescriptor.for_path(handle, str(partition), uuid.uuid4().hex)
            writer, reader = client.do_put(path, table.schema, options())
            with writer:
                writer.write_table(table, max_chunksize=batch_rows)
                writer.write_metadata(json.dumps({"records": table.num_rows}).encode())
                writer.done_writing()
                stored = reader.read()
            return json.loads(stored.to_pybytes())["records"]
        at = partition % len(self.nodes)
        stored = self.call(attempt, self.nodes[at:] + self.nodes[:at])
        assert stored == table.num_rows, f"{stored} rows of {table.num_rows} are stored"

    def get(self, ticket, nodes):
        return self.call(lambda client: client.do_get(ticket, options()).read_all(), nodes + self.nodes)


def options():
    return flight.FlightCallOptions(timeout=CALL)


def say(line):
    # In one piece: threads say something at the same time.
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def wait():
    sys.stdin.readline()


def begin(rows, inputs, partition):
    return rows * partition // inputs


def write(nodes, handle, name, rows, inputs, made, part):
    nodes, rows, inputs = Nodes(nodes), int(rows), int(inputs)
    source, (own, writers) = INPUTS[name](rows), map(int, part.split("/"))
    partitions = range(own, inputs, writers)

    def make(partition):
        return source.make(np.arange(begin(rows, inputs, partition), begin(rows, inputs, partition + 1)))

    tables = {partition: make(partition) for partition in partitions} if made == "before" else {}
    say(f"ready {sum(table.nbytes for table in tables.values())}")
    wait()
    for partition in partitions:
        nodes.put(handle, partition, tables[partition] if tables else make(partition))
        say(f"whole {partition}")
    say(f"done {nodes.again}")
    wait()


def endpoints(nodes, handle, rows, inputs, partitions):
    """The tickets of all partitions in order, and the nodes that have each."""
    if handle == "-":
        return [(flight.Ticket(str(partition).encode()), []) for partition in range(inputs)]
    sealed = nodes.action("seal", shuffle=handle, inputs=inputs)
    assert sealed["records"] == rows, f"{sealed['records']} rows of {rows} are sealed"
    path = flight.FlightDescriptor.for_path(handle, str(partitions))
    found = nodes.call(lambda client: client.get_flight_info(path, options()), nodes.nodes).endpoints
    holders = [[location.uri.decode() for location in endpoint.locations] for endpoint in found]
    return [(endpoint.ticket, at) for endpoint, at in zip(found, holders)]


def read(nodes, handle, name, rows, inputs, partitions, deep):
    nodes, rows, inputs, partitions = Nodes(nodes), int(rows), int(inputs), int(partitions)
    source, is_floor = INPUTS[name](rows), handle == "-"
    expected, is_deep = source.sum(), deep == "1"
    of = inputs if is_floor else partitions

    def one(number, ticket, holders):
        table = nodes.get(ticket, holders)
        first, end = begin(rows, of, number), begin(rows, of, number + 1)
        assert table.num_rows == end - first, f"partition {number} has {table.num_rows} rows instead of {end - first}"
        total = source.check(table, first, is_deep)
        # What the floor gives is in no order: it is looked at all the same, so that its client does as much.
        assert source.is_ordered(table) or is_floor, f"the rows of partition {number} are out of order"
        ends = [table.slice(at, 1) for at in (0, table.num_rows - 1) if table.num_rows]
        say(f"read {number}")
        return table.num_rows, total, ends

    say("ready")
    wait()
    count, total, last = 0, 0, None
    with ThreadPoolExecutor(AT_ONCE) as threads:
        found = endpoints(nodes, handle, rows, inputs, partitions)
        assert len(found) == of, f"{len(found)} endpoints for {of} partitions"
        for records, part, ends in threads.map(lambda each: one(each[0], *each[1]), enumerate(found)):
            count, total = count + records, total + part
            if ends and last is not None and not is_floor:
                assert source.is_ordered(pa.concat_tables([last, ends[0]])), "a partition begins before the end of the one before"
            last = ends[-1] if ends else last
    assert (count, total % 2**64) == (rows, expected % 2**64), "the rows that were read are not those that were written"
    say(f"done {nodes.again}")
    wait()


def start(nodes, name, partitions):
    source = INPUTS[name](1)
    schema = base64.b64encode(source.schema.serialize().to_pybytes()).decode()
    say(Nodes(nodes).action("start", schema=schema, by=source.by, partitions=int(partitions))["handle"])


def delete(nodes, handle):
    Nodes(nodes).action("delete", shuffle=handle)
    say("deleted")


def install(venv):
    import pathlib

    import peers

    python, lacks = peers.install(pathlib.Path(venv), [])
    if lacks:
        sys.exit(f"pyarrow is not there: {lacks['']}")
    say(python)


if __name__ == "__main__":
    role, *words = sys.argv[1:]
    {"install": install, "start": start, "write": write, "read": read, "delete": delete}[role](*words)
