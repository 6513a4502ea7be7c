#!/usr/bin/env python3
"""Checks the golden cases against an implementation of README.md that shares no code with Partage.

    python3 vectors/check.py            checks; exit code 1 if anything differs
    python3 vectors/check.py --write    computes the cases anew (needs `xxhash`) and writes them
    python3 vectors/check.py --write NAME.json …    the same for these files alone (most need no module)

Standard library only. If `mmh3`, `xxhash` or `siphash24` can be imported, and if `java` is on the path,
they are asked too, and what was asked is printed.
"""

import binascii
import bisect
import codecs
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
M32, M64 = (1 << 32) - 1, (1 << 64) - 1


def optional(name):
    try:
        return __import__(name)
    except ImportError:
        return None


mmh3, xxhash, siphash24 = optional("mmh3"), optional("xxhash"), optional("siphash24")

# ── Hash functions ──────────────────────────────────────────────────────────────────────────────────────


def java(units, start=0):
    h = start
    for x in units:
        h = (31 * h + x) & M32
    return h


def one_for_a_surrogate(error):
    key, at = error.object, error.start
    if key[at] != 0xED or not 0xA0 <= (key[at + 1 : at + 2] or b"\0")[0] <= 0xBF:
        return "\ufffd", error.end
    third = 0x80 <= (key[at + 2 : at + 3] or b"\0")[0] <= 0xBF
    return "\ufffd", at + 2 + third


codecs.register_error("one-for-a-surrogate", one_for_a_surrogate)


def java_string(key):
    utf16 = key.decode("utf-8", "one-for-a-surrogate").encode("utf-16-be")
    return java(int.from_bytes(utf16[i : i + 2], "big") for i in range(0, len(utf16), 2))


def hadoop_bytes(key):
    return java(((b + 128) % 256 - 128 for b in key), 1)


def rotl(x, r, bits):
    return (x << r | x >> (bits - r)) & ((1 << bits) - 1)


def murmur3_32(key):
    def scramble(k):
        return rotl(k * 0xCC9E2D51 & M32, 15, 32) * 0x1B873593 & M32

    h, whole = 0, len(key) // 4 * 4
    for i in range(0, whole, 4):
        h = (rotl(h ^ scramble(int.from_bytes(key[i : i + 4], "little")), 13, 32) * 5 + 0xE6546B64) & M32
    h ^= scramble(int.from_bytes(key[whole:], "little")) ^ len(key)
    h = (h ^ h >> 16) * 0x85EBCA6B & M32
    h = (h ^ h >> 13) * 0xC2B2AE35 & M32
    return h ^ h >> 16


def murmur3_x64_128(key):
    c1, c2 = 0x87C37B91114253D5, 0x4CF5AD432745937F

    def scramble1(k):
        return rotl(k * c1 & M64, 31, 64) * c2 & M64

    def scramble2(k):
        return rotl(k * c2 & M64, 33, 64) * c1 & M64

    def finish(h):
        h = (h ^ h >> 33) * 0xFF51AFD7ED558CCD & M64
        h = (h ^ h >> 33) * 0xC4CEB9FE1A85EC53 & M64
        return h ^ h >> 33

    def halves(block):
        return int.from_bytes(block[:8], "little"), int.from_bytes(block[8:16], "little")

    h1 = h2 = 0
    whole = len(key) // 16 * 16
    for i in range(0, whole, 16):
        low, high = halves(key[i : i + 16])
        h1 = ((rotl(h1 ^ scramble1(low), 27, 64) + h2) * 5 + 0x52DCE729) & M64
        h2 = ((rotl(h2 ^ scramble2(high), 31, 64) + h1) * 5 + 0x38495AB5) & M64
    low, high = halves(key[whole:])
    h1 ^= scramble1(low) ^ len(key)
    h2 ^= scramble2(high) ^ len(key)
    h1 = (h1 + h2) & M64
    h2 = (h2 + h1) & M64
    h1, h2 = finish(h1), finish(h2)
    h1 = (h1 + h2) & M64
    h2 = (h2 + h1) & M64
    return h1 << 64 | h2


def sip_1_3(key):
    v = [0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573]

    def rounds(count):
        for _ in range(count):
            v[0] = (v[0] + v[1]) & M64
            v[1] = rotl(v[1], 13, 64) ^ v[0]
            v[0] = rotl(v[0], 32, 64)
            v[2] = (v[2] + v[3]) & M64
            v[3] = rotl(v[3], 16, 64) ^ v[2]
            v[0] = (v[0] + v[3]) & M64
            v[3] = rotl(v[3], 21, 64) ^ v[0]
            v[2] = (v[2] + v[1]) & M64
            v[1] = rotl(v[1], 17, 64) ^ v[2]
            v[2] = rotl(v[2], 32, 64)

    whole = len(key) // 8 * 8
    last = int.from_bytes(key[whole:], "little") | (len(key) & 255) << 56
    for block in [int.from_bytes(key[i : i + 8], "little") for i in range(0, whole, 8)] + [last]:
        v[3] ^= block
        rounds(1)
        v[0] ^= block
    v[2] ^= 0xFF
    rounds(3)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def xxh3_64(key):
    if xxhash is None:
        raise ModuleNotFoundError("xxhash")
    return xxhash.xxh3_64_intdigest(key)


# name: (bits, function)
HASHES = {
    "java-string": (32, java_string),
    "java-bytes": (32, java),
    "hadoop-bytes": (32, hadoop_bytes),
    "murmur3-32": (32, murmur3_32),
    "murmur3-x64-128": (128, murmur3_x64_128),
    "xxh3-64": (64, xxh3_64),
    "md5": (128, lambda key: int.from_bytes(hashlib.md5(key).digest(), "big")),
    "crc16": (14, lambda key: binascii.crc_hqx(key, 0) % 16384),
    "sip-1-3": (64, sip_1_3),
}


def mix(z):
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & M64
    z = (z ^ z >> 27) * 0x94D049BB133111EB & M64
    return z ^ z >> 31


def point(name, key):
    bits, function = HASHES[name]
    value = function(key)
    return value >> (bits - 64) if bits > 64 else value << (64 - bits)


def scatter(name, key):
    p = point(name, key)
    return mix(p) if HASHES[name][0] < 64 else p


def slot(name, key, n):
    value = HASHES[name][1](key)
    if name.startswith(("java-", "hadoop-")):
        value &= 0x7FFFFFFF
    return value % n


# ── Schemes ─────────────────────────────────────────────────────────────────────────────────────────────

STEP = 0x9E3779B97F4A7C15


def node_seed(name):
    return murmur3_x64_128(name.encode()) >> 64


def jump_bucket(key, buckets):
    at, following = 0, 0
    while following < buckets:
        at = following
        key = (key * 2862933555777941757 + 1) & M64
        following = int((at + 1) * (float(1 << 31) / float((key >> 33) + 1)))
    return at


class Modulo:
    def __init__(self, nodes, _):
        self.stretch = [name for name, weight in nodes for _ in range(weight)]
        self.names = [name for name, _ in nodes]

    def node(self, h):
        return self.stretch[h % len(self.stretch)]

    def successors(self, name):
        at = self.names.index(name)
        return self.names[at:] + self.names[:at]

    def first(self, h, count):
        return self.successors(self.node(h))[:count]


class Jump(Modulo):
    def node(self, h):
        return self.stretch[jump_bucket(h, len(self.stretch))]

    def first(self, h, count):
        count = min(count, len(self.names))
        found, i = [self.node(h)], 0
        while len(found) < count:
            for _ in range(8):
                i += 1
                name = self.node(mix((h + i * STEP) & M64))
                if name not in found:
                    break
            else:
                name = next(n for n in self.successors(found[-1]) if n not in found)
            found.append(name)
        return found


class Ring:
    def __init__(self, nodes, case):
        per = case["tokens_per_weight"]
        self.weights = dict(nodes)
        self.tokens = sorted(
            (mix((node_seed(name) + i * STEP) & M64), name)
            for name, weight in nodes
            for i in range(1, weight * per + 1)
        )

    def walk(self, h):
        at = bisect.bisect_left(self.tokens, (h, ""))
        return [name for _, name in self.tokens[at:] + self.tokens[:at]]

    def node(self, h):
        return self.walk(h)[0]

    def first(self, h, count):
        return list(dict.fromkeys(self.walk(h)))[:count]

    def bounded(self, hashes, slack):
        total = sum(self.weights.values())
        room = {n: -(-len(hashes) * w * (100 + slack) // (100 * total)) for n, w in self.weights.items()}
        placed = []
        for h in hashes:
            name = next(n for n in self.walk(h) if room[n])
            room[name] -= 1
            placed.append(name)
        return placed


def log2_table():
    table = []
    for i in range(256):
        y, log = (256 + i) << 55, 0
        for _ in range(44):
            y, log = y * y >> 63, log << 1
            if y >> 64:
                y, log = y >> 1, log | 1
        table.append(log)
    return table + [1 << 44]


LOG2 = log2_table()


def cost(lot):
    if lot == 0:
        return 64 << 44
    whole = lot.bit_length() - 1
    fraction = (lot << (64 - whole)) & M64
    line, along = fraction >> 56, fraction & ((1 << 56) - 1)
    return (64 << 44) - (whole << 44) - LOG2[line] - ((LOG2[line + 1] - LOG2[line]) * along >> 56)


class Rendezvous:
    def __init__(self, nodes, _):
        self.nodes = nodes

    def first(self, h, count):
        from fractions import Fraction

        def draw(node):
            name, weight = node
            lot = mix(node_seed(name) ^ mix(h))
            return (Fraction(cost(lot), weight), -lot, name)

        return [name for name, _ in sorted(self.nodes, key=draw)[:count]]

    def node(self, h):
        return self.first(h, 1)[0]


SCHEMES = {"modulo": Modulo, "jump": Jump, "ring": Ring, "rendezvous": Rendezvous}


def partition(rule, key):
    if rule == "whole":
        return key
    if rule == "hash-tag":
        at = key.find(b"{")
        end = key.find(b"}", at + 1) if at >= 0 else -1
        return key[at + 1 : end] if end > at + 1 else key
    kind, number = rule.split(" ")
    if kind == "prefix":
        return key[: int(number)]
    return key.split(bytes([int(number)]), 1)[0]


def even(n):
    return [(i << 64) // n for i in range(n)]


def quantiles(sample, shards):
    weights = {}
    for key, weight in sample:
        weights[key] = weights.get(key, 0) + weight
    keys = sorted(weights)
    left, following, begins = sum(weights.values()), 0, [b""]
    for parts in range(shards, 1, -1):
        aim, last = left // parts, len(keys) - (parts - 1)
        taken = weights[keys[following]]
        following += 1
        while following < last and 2 * taken + weights[keys[following]] <= 2 * aim:
            taken += weights[keys[following]]
            following += 1
        left -= taken
        begins.append(keys[following])
    return begins


# ── The cases ───────────────────────────────────────────────────────────────────────────────────────────

KEYS = [
    b"", b"\0", b"a", b"ab", b"abc", b"abcd", b"hello", b"123456789", b"foo", b"user1000", b"libc6",
    b"python3-numpy", b"polygenelubricants", b"The quick brown fox jumps over the lazy dog",
    "é".encode(), "naïve café".encode(), "日本語".encode(), "😀".encode(), b"\xff", b"\xff\xfe\xfd",
    b"a\xe2\x82", b"\xed\xa0\x80", b"\xed\xa0a\xf4\x90\x80\x80\xc0\x80", bytes(range(16)), bytes(range(256)), b"x" * 240, b"y" * 241,
    bytes(i * 7 & 255 for i in range(1025)), b"\0" * 4096,
]  # fmt: skip
NODE_LISTS = [
    [["solo", 1]],
    [[f"node-{i}", 1] for i in range(10)],
    [["small", 1], ["middle", 3], ["large", 10]],
    [["eu-west-1.a:7000", 10000], ["eu-west-1.b:7000", 9999], ["tiny", 1]],
]


def hash_cases():
    def answers(name, key):
        bits, function = HASHES[name]
        return {
            "value": f"{function(key):0{-(-bits // 4)}x}",
            "point": f"{point(name, key):016x}",
            "scatter": f"{scatter(name, key):016x}",
            "slot_of_1000": slot(name, key, 1000),
        }

    return {"cases": [{"key": k.hex(), "hashes": {n: answers(n, k) for n in HASHES}} for k in KEYS]}


def node_case(scheme, nodes, extra):
    case = {"scheme": scheme, **extra, "nodes": nodes}
    built = SCHEMES[scheme](nodes, case)
    hashes = [scatter("md5", f"key-{i}".encode()) for i in range(20)] + [0, 1, M64]
    case["lookups"] = [
        {"hash": f"{h:016x}", "node": built.node(h), "first_3": built.first(h, 3)} for h in hashes
    ]
    if scheme == "ring":
        case["bounded_10_percent"] = built.bounded(hashes, 10)
    return case


def scheme_cases():
    begins = sorted({b"", b"a", b"ab", b"ab\0", b"ab\0\0", b"abcdefgh", b"abcdefghi", b"m", b"python3-",
                     b"python3-numpy", b"python3-yaml", b"\xff", b"\xff\xff"})  # fmt: skip
    keys = KEYS + begins + [b"abcdefgh\0", b"python3-nump", b"python3-numpy-dev", b"\xff\xfe\xff"]
    sample = [[k, 1 + i % 5 + 90 * (k == b"foo")] for i, k in enumerate(KEYS)]
    rules = ["whole", "prefix 3", "up-to 45", "up-to 0", "hash-tag"]
    tagged = [b"{user1000}.following", b"foo{}{bar}", b"foo{{bar}}zap", b"foo{bar}{zap}", b"a-b-c", b"a\0b"]
    nodes = [node_case(s, n, {}) for s in ("modulo", "jump", "rendezvous") for n in NODE_LISTS]
    nodes += [node_case("ring", n, {"tokens_per_weight": t}) for n in NODE_LISTS[:3] for t in (1, 100)]
    jumps = [(0, 1), (42, 57), (0xDEAD10CC, 1), (0xDEAD10CC, 666), (256, 1024), (M64, 1000), (1, 2**31 - 1)]
    return {
        "fixed": [
            {"hash": h, "shards": n, "key": k.hex(), "slot": slot(h, k, n)}
            for h in HASHES for n in (1, 7, 1024, 16384) for k in KEYS[2:14:3]
        ],
        "hash_ranges": [
            {"hash": h, "ranges": n, "key": k.hex(), "range": bisect.bisect_right(even(n), point(h, k)) - 1}
            for h in HASHES for n in (1, 3, 1000) for k in KEYS[1:14:3]
        ],
        "key_ranges": {
            "begins": [b.hex() for b in begins],
            "lookups": [{"key": k.hex(), "range": bisect.bisect_right(begins, k) - 1} for k in keys],
        },
        "partition_keys": [
            {"rule": r, "key": k.hex(), "partition_key": partition(r, k).hex()} for r in rules for k in tagged
        ],
        "sample_presplit": [
            {"sample": [[k.hex(), w] for k, w in sample], "shards": n,
             "begins": [b.hex() for b in quantiles(sample, n)]}
            for n in (1, 2, 5, len(KEYS))
        ],
        "jump_buckets": [{"key": f"{k:016x}", "buckets": n, "bucket": jump_bucket(k, n)} for k, n in jumps],
        "nodes": nodes,
    }  # fmt: skip


STATEFUL = ("work_stealing", "balanced")


def placed(policy, members, replicas, hashes):
    """By a policy that computes: for each shard the names of its nodes, the leader first."""
    if policy == "ring_index":
        order = sorted(members)
        copies = [sum(replicas[:shard]) for shard in range(len(replicas))]
        return [[order[(copies[s] + c) % len(order)] for c in range(r)] for s, r in enumerate(replicas)]
    scheme = SCHEMES[policy]([[name, 1] for name in members], {"tokens_per_weight": 100})
    return [scheme.first(mix(int(h, 16)), r) for h, r in zip(hashes, replicas)]


def placement_cases():
    """What the policies that compute say; of the others, that what the file has is possible, and moves little."""
    held = HERE / "placements.json"
    held = json.loads(held.read_text())["cases"] if held.exists() else []
    cases = []
    for at, (count, shards, most, gone) in enumerate([(5, 8, 1, 0), (5, 12, 3, 0), (10, 20, 3, 0), (10, 20, 3, 4)]):
        nodes = [f"n{i}" for i in range(count)]
        members = [name for i, name in enumerate(nodes) if not gone or i != gone]
        replicas = [1 + shard % most for shard in range(shards)]
        hashes = [f"{scatter('md5', f'shard-{i}'.encode()):016x}" for i in range(shards)]
        policies = {p: placed(p, members, replicas, hashes) for p in ("ring_index", "ring", "rendezvous", "jump")}
        case = {"nodes": nodes, "replicas": replicas, "hashes": hashes}
        if gone:
            case["gone"] = nodes[gone]
            case["current"] = placed("rendezvous", nodes, replicas, hashes)
            # Replicas that stay keep their order, newcomers come after them.
            for answer in policies.values():
                for shard, (now, then) in enumerate(zip(case["current"], answer)):
                    answer[shard] = [n for n in now if n in then] + [n for n in then if n not in now]
        for policy in STATEFUL:
            told = held[at]["placed"].get(policy) if at < len(held) else None
            policies[policy] = told
            if told is None:
                continue
            for shard, answer in enumerate(told):
                possible = len(answer) == len(set(answer)) == replicas[shard] and set(answer) <= set(members)
                stays = not gone or set(case["current"][shard]) - {case["gone"]} <= set(answer)
                if not possible or not stays:
                    policies[policy] = f"shard {shard} cannot be on {answer}"
                    break
        cases.append({**case, "placed": policies})
    return {"cases": cases}


# ── Partitions of datasets ──────────────────────────────────────────────────────────────────────────────

PARTITIONERS = ("java-bytes", "java-string", "hadoop-bytes")
M31 = (1 << 31) - 1


def near_limit(distance):
    """A key whose java-bytes hash is that far below 2^31 - 1: its digits in base 31."""
    number, digits = M31 - distance, []
    while number:
        number, digit = divmod(number, 31)
        digits.append(digit)
    return bytes(reversed(digits))


def dataset_partition(name, key, n):
    """The partition, and where else Cascading may have put the key, or None."""
    h = HASHES[name][1](key) & M31
    elsewhere = ((h + 31 & M31) % n - 31) % n
    return [h % n, elsewhere if h > M31 - 32 and elsewhere != h % n else None]


def partition_cases():
    pathological = bytes([112, 23, 173, 120, 140, 94, 133, 241, 67, 39, 248, 103])
    keys = KEYS + [b"bar", b"fol", pathological] + [near_limit(d) for d in (0, 1, 30, 31, 32)]
    return {
        "cases": [
            {
                "key": k.hex(),
                "partitions": n,
                "in": {p: dataset_partition(p, k, n) for p in PARTITIONERS},
            }
            for n in (1, 5, 20, 1000)
            for k in keys
        ]
    }


# ── METADATA files ──────────────────────────────────────────────────────────────────────────────────────


def crc32c(data, crc=0):
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def whitened(number, data):
    out, state = bytearray(data), number * STEP & M64
    for at in range(0, len(out), 8):
        state = (state + STEP) & M64
        for i, mask in enumerate(mix(state).to_bytes(8, "little")):
            if at + i < len(out):
                out[at + i] ^= mask
    return bytes(out)


def opened(place, value):
    """The message in an envelope; see crates/wire/src/stored/envelope.rs."""
    stored = int.from_bytes(value[1:5], "little")
    assert value[0] == 1 and stored == crc32c(value[:1] + place.encode() + b"\0" + value[5:]), place
    assert value[5:9] == bytes([0, 0, 1, 0]), "a record is one part"
    return value[9:]


def metadata_cases():
    """Reads the file as crates/journal/src/frame.rs says that it is, down to the messages."""
    held = json.loads((HERE / "metadata.json").read_text())
    file, number, at, records = bytes.fromhex(held["file"]), int(held["book"][:16], 16), 64, []
    assert file[:8] == b"PARTAGEJ" and int.from_bytes(file[60:64], "big") == crc32c(file[:60])
    assert int.from_bytes(file[32:40], "big") == number, "the file's number is the first bytes of its name"
    while at < len(file):
        header = file[at : at + 32]
        size = int.from_bytes(header[4:8], "big")
        payload = file[at + 32 : at + 32 + size]
        assert int.from_bytes(header[28:], "big") == crc32c(header[:28]), f"the header at {at}"
        assert int.from_bytes(header[24:28], "big") == crc32c(payload), f"the payload at {at}"
        assert header[8:16] == (len(records) + 1).to_bytes(8, "big") and header[16:24] == number.to_bytes(8, "big")
        message = opened(f"{held['keyspace']}/{held['book']}", whitened(len(records) + 1, payload))
        records.append({"kind": ["", "begin", "chunk", "operation", "dropped"][message[0] >> 3], "message": message.hex()})
        at += -(-(32 + size + 8) // 32) * 32
    head = held["head"]
    message = opened(head["key"], bytes.fromhex(head["value"]))
    return {**held, "records": records, "head": {**head, "message": message.hex()}}


# ── Roles of replicas ───────────────────────────────────────────────────────────────────────────────────

ROLES = {"leader": 1, "follower": 2, "read replica": 3}
STATES = {"Load": 1, "Live": 2, "Unload": 3, "UnloadFinal": 4}


def groups(value):
    """A number in groups of 7 bits, lowest first."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def fields(*pairs):
    """A protobuf message of numbers and of bytes; numbers that are 0 are left out."""
    out = b""
    for tag, value in pairs:
        if isinstance(value, bytes):
            out += groups(tag << 3 | 2) + groups(len(value)) + value
        elif value:
            out += groups(tag << 3) + groups(value)
    return out


def role_cases():
    """Computes the message from what is said of the map, by crates/wire/proto/partage/v1/map.proto."""
    held = json.loads((HERE / "roles.json").read_text())
    nodes, replicas = [], []
    for at, one in enumerate(held["replicas"]):
        nodes.append((5, fields((1, one["node"].encode()), (2, one["incarnation"]))))
        role, state = ROLES[one["role"]], STATES[one["state"]]
        numbers = (1, one["placement"]), (2, at), (3, role), (4, state), (6, int(one["in_sync"]))
        replicas.append((7, fields(*numbers)))
    every_key = fields((1, b""))
    shard = fields((1, 1), (2, held["epoch"]), (3, every_key), *replicas, (8, held["configuration"]))
    to = fields((1, 1), (2, bytes.fromhex(held["transaction"])))
    head = (1, held["keyspace"].encode()), (2, b""), (3, to), (4, b"")
    message = fields(*head, *nodes, (6, shard), (8, 2), (9, len(replicas) + 1))
    return {**held, "message": message.hex()}


# ── Shuffles ────────────────────────────────────────────────────────────────────────────────────────────


def given_identities(case):
    """Greedy by shared density; of equal ones the pair whose old range, then whose new range comes first."""
    order = sorted(case["shared"], key=lambda pair: (-pair[2], case["old"].index(pair[0]), case["new"].index(pair[1])))
    given, used = {}, set()
    for old, new, density in order:
        if density > 0 and old not in used and new not in given:
            given[new] = old
            used.add(old)
    fresh = iter(range(case["next"], case["next"] + len(case["new"])))
    return [given[new] if new in given else next(fresh) for new in case["new"]]


SHUFFLE_IDENTITIES = [
    {"old": [1, 2, 3], "new": [4, 5, 6, 7, 8], "shared": [[1, 4, 20], [1, 5, 15], [3, 4, 10], [3, 5, 9], [2, 6, 8]], "next": 9},
    {"old": [10, 20], "new": [1, 2], "shared": [[10, 1, 5], [10, 2, 5], [20, 1, 5], [20, 2, 5]], "next": 21},
    {"old": [10, 20], "new": [1, 2, 3], "shared": [[10, 1, 0], [20, 3, 1]], "next": 21},
    {"old": [], "new": [1, 2], "shared": [], "next": 0},
]
SHUFFLE_RANKS = [(0, 1), (1, 1), (1, 3), (10, 3), (10_000_000, 7), (M64, 5), (3, 10)]
SHUFFLE_SLOTS = [(0, 0, 1024), (1, 2, 1024), ((1 << 128) - 1, M64, 1024), (0x0123456789ABCDEF << 64, 77, 1000)]


def shuffle_cases():
    identities = [{**case, "ids": given_identities(case)} for case in SHUFFLE_IDENTITIES]
    ranks = [
        {"total": f"{total:016x}", "n": n, "ranks": [f"{i * total // n:016x}" for i in range(n + 1)]}
        for total, n in SHUFFLE_RANKS
    ]
    slots = []
    for shuffle, number, of in SHUFFLE_SLOTS if xxhash else []:
        key = shuffle.to_bytes(16, "big")
        home, own = (xxh3_64(k) % of for k in (key, key + number.to_bytes(8, "big")))
        slots.append({"shuffle": f"{shuffle:032x}", "range": f"{number:016x}", "slots": of, "home": home, "slot": own})
    return {"identities": identities, "ranks": ranks, "slots": slots}


# ── Frames of shuffles ──────────────────────────────────────────────────────────────────────────────────

FRAME_SHUFFLE = bytes(range(1, 17))
TERMS = ["fixed 0000001e", "fixed 00000280", "fixed 0003", "fixed 01", "fixed 02", "fixed 02"]
NO_OPTIONS = ["fixed 01", "fixed 00", "fixed 00", "text "]
# Of rows of Arrow, with all that may be left out.
OPTIONS = [
    "fixed 02", "fixed 0001", "bytes 73", "count 1", "fixed 00000003", "fixed 01", "fixed 00",
    "count 1", "fixed 00000002", "fixed 04",
    "fixed 01", "fixed 0000000000004e20", "fixed 01", "fixed 0000000005265c00", "text etl",
]
OWN = ["text n1", "fixed 0000000000000003"]
TASK = ["fixed 0000000000000005", "fixed 0000000000000006"]
STREAM = ["fixed " + FRAME_SHUFFLE.hex(), "fixed 00000009"]
BATCH_NUMBER = ["fixed 000000000000012c"]
OF_BUFFER = ["fixed 01", *OWN]
CALL = ["fixed 0000000000000008"]
TWO_RECORDS = ["raw 0105", "raw 6b", "raw 76616c7565", "raw 0000"]
MARK = [
    *OWN, "fixed 0000000000000007", "fixed 00000002", "fixed 000000000000000000000000000000ff",
    "fixed 0000000000000002", "fixed 0000000000000006",
    "count 1", "fixed 00000009", "fixed 000000000000012c",
]
BOUNDS = [
    "fixed 00000001", "count 2", "fixed 0000000000000004", "bytes ", "fixed 0000000000000005", "bytes 6d",
]
# Of one winner, of a buffer and a division, and of two ranges.
PLAN = [
    "fixed " + FRAME_SHUFFLE.hex(),
    "count 1", *OWN, "fixed 0000000000000007", "fixed 00000002", "fixed 0000000000000002", "fixed 0000000000000006",
    "count 1", "fixed 00000009", "count 2",
    *OF_BUFFER, *BATCH_NUMBER, "fixed 02", *TASK, *OWN, "fixed 0000000000000001",
    "count 2",
    "fixed 0000000000000004", "fixed 00000001", "bytes ", "fixed 00000009",
    "fixed 0000000000000002", "fixed 0000000000000006",
    "fixed 0000000000000005", "fixed 00000002", "bytes 6d", "fixed 0000000a",
    "fixed 0000000000000000", "fixed 0000000000000000",
]
SUPERSEDED = [
    "fixed 00000009", "count 1", "fixed 00000000", "fixed 0000000000000001", "count 1", *OF_BUFFER, *BATCH_NUMBER,
    "fixed 02", *TASK, *OWN, "count 1", "fixed 00000009", "fixed 0000000000000002",
]
HEAVY_KEY = ["bytes 6b", "fixed 000000000000000a", "fixed 00000000000000c8"]
FAILURE = [
    "fixed 01", "fixed 0000000000000001", "fixed 0000000000000002", "fixed 0000000000000003", "fixed 0000000000000004",
]


def frame_case(name, kind, body, of_shuffle=True, number=0):
    return {"name": name, "kind": kind, "shuffle": of_shuffle, "number": number, "body": body}


SHUFFLE_FRAMES = [
    frame_case("hello of a node", 1, ["fixed 01", *OWN, "text n2"], False),
    frame_case("hello of a client", 1, ["fixed 02"], False),
    frame_case("welcome", 2, ["text n2", "fixed 0000000000000003"], False),
    frame_case("goodbye", 3, ["text bad-frame", "fixed 02", "text frame 7 came twice"], False, 7),
    frame_case("ping", 4, [], False, (1 << 64) - 2),
    frame_case("batch of records", 16, [
        *STREAM, "fixed 02", *TASK, *OWN, *BATCH_NUMBER, "fixed 01",
        # Two attempts, in order: of the writer's own buffer, and of another one.
        "count 2",
        "fixed 0000000000000007", "fixed 00000002", "fixed 00",
        "fixed 0000000000000001", "fixed 00000003", "fixed 01", "text n2", "fixed 0000000000000004",
        "count 2",
        "fixed 00000000", "fixed 0000000000000001", "count 1",
        "count 0", "count 1", "count 2", "count 10", *TWO_RECORDS,
        "fixed 00000001", "fixed 0000000000000005", "count 2",
        "count 1", "count 2", "count 1", "count 5", "raw 0201", "raw 6b6b", "raw 76",
        "count 0", "count 130", "count 1", "count 4", "raw 0101", "raw 6c", "raw 77",
    ]),
    frame_case("batch with a mark", 16, [
        *STREAM, *OF_BUFFER, *BATCH_NUMBER, "fixed 02", *MARK,
    ]),
    frame_case("batch in memory", 16, [
        *STREAM, *OF_BUFFER, *BATCH_NUMBER, "fixed 03", "count 0", "count 1", "fixed 00000000", "fixed 0000000000000001", "count 0",
    ]),
    frame_case("batch in memory with a mark", 16, [*STREAM, *OF_BUFFER, *BATCH_NUMBER, "fixed 04", *MARK]),
    frame_case("stored", 17, [*STREAM, *OF_BUFFER, *BATCH_NUMBER]),
    frame_case("inventory", 19, [
        "fixed 00000009", "fixed 0000000000000002", "fixed 01", "count 1", *STREAM, *OF_BUFFER,
        "fixed 0000000000000004", "count 2", "fixed 0000000000000007", "fixed 0000000000000008",
    ], False),
    frame_case("append", 21, [
        "fixed 00000009", "fixed 0000000000000005", "fixed 02", "fixed 000000000000000b", "count 1",
        "fixed " + FRAME_SHUFFLE.hex(), "fixed 01", *TERMS, *NO_OPTIONS,
    ], False),
    frame_case("ask", 24, []),
    frame_case("word", 25, ["fixed 01", *BOUNDS, "fixed 02"]),
    frame_case("sample", 29, [
        *OWN, "fixed 00000008", "fixed 0000000000000001", "count 1", "count 2", "bytes 62", "bytes 61",
    ]),
    frame_case("counted", 33, [
        "fixed 0000000000000005", "fixed 00000009", "count 1", "fixed 0000000000000004",
        "fixed 000000000000000a", "fixed 00000000000003e8",
    ]),
    frame_case("start", 64, [*CALL, *TERMS, *NO_OPTIONS]),
    frame_case("open", 65, [*CALL, "fixed 00000002", "fixed 000000000000000000000000000000ff", *TERMS]),
    frame_case("records", 66, [*CALL, "fixed 0000000000000001", "count 2", "count 10", *TWO_RECORDS]),
    frame_case("end", 67, [*CALL, "fixed 0000000000000002", "fixed 0000000000000006"]),
    frame_case("seal", 69, [*CALL, "count 3", "fixed 00000000", "fixed 00000001", "fixed 00000007"]),
    frame_case("read a partition", 70, [*CALL, "fixed 0000000000000003", "fixed 0000000000000100", "fixed 01"]),
    frame_case("read keys", 71, [*CALL, "bytes 61", "fixed 01", "bytes 62"]),
    frame_case("whole", 99, CALL),
    frame_case("lacks", 101, [*CALL, "count 1", "fixed 00000001"]),
    frame_case("read", 102, [*CALL, "count 2", "count 10", *TWO_RECORDS]),
    frame_case("refused", 108, [*CALL, "text disk-full", "fixed 02", "text the disk of n1 is full"]),
    frame_case("pong", 5, [], False),
    frame_case("batch refused", 18, [*STREAM, *OF_BUFFER, *BATCH_NUMBER, "fixed 02"]),
    frame_case("ask whether it is stored", 42, [*STREAM, *OF_BUFFER, *BATCH_NUMBER, "fixed 01"]),
    frame_case("not stored", 43, [*STREAM, *OF_BUFFER, *BATCH_NUMBER, "fixed 03"]),
    frame_case("fetch", 20, [
        "count 2", *STREAM, *OF_BUFFER, *BATCH_NUMBER, *STREAM, "fixed 02", *TASK, *OWN, *BATCH_NUMBER,
    ], False),
    frame_case("fetch of a receipt", 20, ["count 1", *STREAM, "fixed 03", *OWN, *BATCH_NUMBER], False),
    frame_case("make room", 40, ["fixed 00000009"]),
    frame_case("append of an end", 21, [
        "fixed 00000009", "fixed 0000000000000005", "fixed 02", "fixed 000000000000000b", "count 1",
        "fixed " + FRAME_SHUFFLE.hex(), "fixed 06", "fixed 01",
    ], False),
    frame_case("append of a whole copy", 21, [
        "fixed 00000009", "fixed 0000000000000005", "fixed 01", "fixed 0000000000000005", "fixed 000000000000000c",
        "count 1", "fixed " + FRAME_SHUFFLE.hex(), "count 5",
        "fixed 01", *TERMS, *OPTIONS, "fixed 02", *BOUNDS, "fixed 03", *SUPERSEDED, "fixed 04", *PLAN, "fixed 05", *FAILURE,
        "count 1", "fixed 00000000000000000000000000000001", "fixed 03",
    ], False),
    frame_case("appended", 22, ["fixed 00000009", "fixed 0000000000000005", "fixed 000000000000000c"], False),
    frame_case("not appended, stale", 23, [
        "fixed 00000009", "fixed 0000000000000005", "fixed 01", "fixed 0000000000000006",
    ], False),
    frame_case("not appended, lacks", 23, ["fixed 00000009", "fixed 0000000000000005", "fixed 02"], False),
    frame_case("word of a plan", 25, ["fixed 02", *PLAN]),
    frame_case("word of a failure", 25, ["fixed 03", *FAILURE]),
    frame_case("word of a loss", 25, ["fixed 03", "fixed 02"]),
    frame_case("word of an end", 25, ["fixed 04", "fixed 01"]),
    frame_case("dropped", 26, []),
    frame_case("ask for marks", 27, ["fixed 00"]),
    frame_case("ask for more marks", 27, ["fixed 01", *OWN, "fixed 0000000000000006"]),
    frame_case("marks", 28, ["fixed 01", *OWN, "fixed 0000000000000006", "fixed 01", "count 1", *MARK]),
    frame_case("divide", 30, [
        *TASK, *STREAM, "count 2",
        "fixed 00000000", "fixed 0000000000000001", "count 0",
        "fixed 00000001", "fixed 0000000000000005", "count 1", *OF_BUFFER, "fixed 0000000000000003",
        "count 1", *OF_BUFFER, *BATCH_NUMBER, *BOUNDS, "fixed 02",
    ]),
    frame_case("divided", 31, [*TASK, *OWN, "count 1", "fixed 00000009", "fixed 0000000000000002"]),
    frame_case("count", 32, ["fixed 0000000000000005", "fixed 00000009", *PLAN]),
    frame_case("replica lacks", 41, ["fixed 00000009"]),
    frame_case("start of rows of Arrow", 64, [*CALL, *TERMS, *OPTIONS]),
    frame_case("abort", 68, CALL),
    frame_case("read a slice", 72, [
        *CALL, "fixed 0000000000000004", "fixed 01", "bytes 61", "fixed 00",
        "fixed 000000000000000a", "fixed 0000000000000014",
    ]),
    frame_case("read a partition where it is", 79, [
        *CALL, "fixed 0000000000000003", "fixed 0000000000000100", "fixed 03",
    ]),
    frame_case("read ranks", 77, [*CALL, "fixed 000000000000000a", "fixed 0000000000000014"]),
    frame_case("ask for bounds", 73, [*CALL, "fixed 0000000000000100", "fixed 02"]),
    frame_case("ask for heavy keys", 78, [*CALL, "fixed 0000000000000100"]),
    frame_case("ask for the status", 74, CALL),
    frame_case("keep alive", 75, CALL),
    frame_case("delete", 76, CALL),
    frame_case("started", 96, [*CALL, *TERMS, "count 1", "fixed " + FRAME_SHUFFLE.hex()]),
    frame_case("opened", 97, CALL),
    frame_case("taken", 98, [*CALL, "fixed 0000000000000001"]),
    frame_case("sealed", 100, [*CALL, "fixed 0000000000000002", "fixed 0000000000000006"]),
    frame_case("read to the end", 103, [*CALL, "fixed 0000000000000002", "fixed 0000000000000006"]),
    frame_case("read at", 110, [*CALL, "text n2"]),
    frame_case("bounds", 104, [*CALL, "count 3", "bytes 61", "bytes 6d", "bytes 7a"]),
    frame_case("heavy keys", 109, [*CALL, "fixed 000000000000012c", "count 1", *HEAVY_KEY]),
    frame_case("status", 105, [
        *CALL, "fixed 01", "fixed 0000000000000001", "fixed 0000000000000002", "fixed 0000000000000006",
        "fixed 00000001", "fixed 00000002", "text marks",
    ]),
    frame_case("alive", 106, CALL),
    frame_case("deleted", 107, CALL),
    frame_case("a start for a client", 34, ["fixed 0000000000000008", "fixed 01", *TERMS, *OPTIONS]),
    frame_case("a refusal of another start", 35, [
        "fixed 0000000000000008", "fixed 00", "fixed 05", "fixed 03",
    ], False),
    frame_case("a refusal of a start beyond a quota", 35, [
        "fixed 0000000000000008", "fixed 00", "fixed 06", "fixed 01",
        "fixed 0000000000000007", "fixed 0000000000000007", "fixed 0000000000000014",
    ], False),
    frame_case("a seal for a client", 34, [
        "fixed 0000000000000008", "fixed 02", "count 3", "fixed 00000000", "fixed 00000001", "fixed 00000007",
    ]),
    frame_case("an overview for a client", 35, [
        "fixed 0000000000000008", "fixed 01", "fixed 06", "fixed " + FRAME_SHUFFLE.hex(), *OPTIONS, "fixed 01", "fixed 07", "fixed 01", "fixed 02",
        "fixed 0000000000000002", "fixed 0000000000000003", "fixed 0000000000000028", "fixed 0000000000000fa0",
        "fixed 00000001", "fixed 0000005a", "fixed 00000000000005dc", "fixed 00000005", "fixed 00000001", "count 1", "fixed 00000007",
    ], False),
    frame_case("a refusal of a leader", 35, ["fixed 0000000000000008", "fixed 00", "fixed 02", "fixed 02"], False),
    frame_case("a slice for a client", 36, [
        "fixed 0000000000000008", "fixed " + FRAME_SHUFFLE.hex(), "fixed 0000000000000004",
        "fixed 01", "bytes 61", "fixed 00", "fixed 000000000000000a", "fixed 0000000000000014",
    ]),
    frame_case("records for a client", 37, [
        "fixed 0000000000000008", "fixed 01", "count 2",
        # Partition 2, frame 1; then 3 and 0: one more, and one less.
        "count 4", "count 2", "count 300", "count 2", "count 1", "count 0",
        "count 12", "raw 0101", "raw 6b", "raw 76", "raw 0105", "raw 6b", "raw 76616c7565",
    ], False),
    frame_case("a refusal of a holder", 37, ["fixed 0000000000000008", "fixed 00", "fixed 02"], False),
    frame_case("a refusal for the object store", 37, ["fixed 0000000000000008", "fixed 00", "fixed 06"], False),
    frame_case("a refusal for a lost object", 37, ["fixed 0000000000000008", "fixed 00", "fixed 07"], False),
    frame_case("cuts that are sought", 38, [
        "fixed 0000000000000008", "fixed " + FRAME_SHUFFLE.hex(), "fixed 0000000000000004",
        "fixed 01", "fixed 03", "count 2", "fixed 000000000000000a", "fixed 0000000000000014",
    ]),
    frame_case("heavy keys that are sought", 38, [
        "fixed 0000000000000008", "fixed " + FRAME_SHUFFLE.hex(), "fixed 0000000000000004",
        "fixed 02", "fixed 0000000000000009", "fixed 000000000000000a",
    ]),
    frame_case("cuts that were found", 39, [
        "fixed 0000000000000008", "fixed 01", "count 2",
        "fixed 000000000000000c", "fixed 01", "bytes 6b", "fixed 0000000000000014", "fixed 00",
    ], False),
    frame_case("heavy keys that were found", 39, [
        "fixed 0000000000000008", "fixed 02", "count 1", *HEAVY_KEY, "fixed 01",
    ], False),
]


def count_form(count):
    """Groups of 7 bits, lowest first."""
    out = bytearray()
    while count >= 0x80:
        out.append(count & 0x7F | 0x80)
        count >>= 7
    return bytes(out) + bytes([count])


def frame_part(part):
    kind, _, what = part.partition(" ")
    if kind == "count":
        return count_form(int(what))
    data = what.encode() if kind == "text" else bytes.fromhex(what)
    return data if kind in ("fixed", "raw") else count_form(len(data)) + data


def frame_bytes(case):
    body = b"".join(map(frame_part, case["body"]))
    shuffle = FRAME_SHUFFLE if case["shuffle"] else bytes(16)
    head = b"PSHF" + bytes([2, case["kind"]]) + bool(case["shuffle"]).to_bytes(2, "big")
    head += len(body).to_bytes(4, "big") + crc32c(body).to_bytes(4, "big") + case["number"].to_bytes(8, "big") + shuffle
    return head + crc32c(head).to_bytes(4, "big") + body


def shuffle_frame_cases():
    def told(case):
        shuffle = FRAME_SHUFFLE.hex() if case["shuffle"] else None
        return {**case, "shuffle": shuffle, "number": f"{case['number']:016x}", "frame": frame_bytes(case).hex()}

    return {"frames": [told(case) for case in SHUFFLE_FRAMES]}


# ── Other people's implementations ──────────────────────────────────────────────────────────────────────

JAVA = """
public class Ask { public static void main(String[] a) throws Exception {
    var in = new java.io.BufferedReader(new java.io.InputStreamReader(System.in));
    for (String line; (line = in.readLine()) != null; ) {
        byte[] key = java.util.HexFormat.of().parseHex(line);
        String s = new String(key, java.nio.charset.StandardCharsets.UTF_8);
        System.out.printf("%08x %08x%n", s.hashCode(), java.util.Arrays.hashCode(key));
    } } }
"""


def number(data):
    """A length in groups of 7 bits, lowest first, and what follows it."""
    value = 0
    for at, byte in enumerate(data):
        value |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            return value, data[at + 1:]


def sum_at(place, data):
    """The checksum of what lies at a place."""
    return crc32c(data, crc32c(place.to_bytes(8, "little")))


def hashed_entries(file, data_end, table):
    begins, found = 16, []
    for page, at in enumerate(table):
        count = int.from_bytes(file[at + 4:at + 6], "little")
        end = at + 6 + 5 * count
        assert int.from_bytes(file[at:at + 4], "little") == sum_at(page, file[at + 4:end]), f"directory {page}"
        distances = [int.from_bytes(file[i:i + 4], "little") for i in range(at + 6 + count, end, 4)]
        places = [at - distance for distance in distances] + [at]
        assert places[0] == begins, f"page {page}"
        begins = end
        for place, until, fingerprint in zip(places, places[1:], file[at + 6:]):
            entry = file[place:until]
            assert int.from_bytes(entry[:4], "little") == sum_at(place, entry[4:]) and entry[4] == 0
            size, rest = number(entry[5:])
            if xxhash is not None:
                value = xxh3_64(rest[:size])
                assert (value * len(table) >> 64, value & 0xFF) == (page, fingerprint), rest[:size]
            found.append((rest[:size], rest[size:]))
    assert begins == data_end
    return found


def ordered_entries(file, data_end):
    block = file[16:data_end]
    assert int.from_bytes(block[:4], "little") == sum_at(16, block[4:]) and block[4] == 0
    size, raw = number(block[5:])
    assert size == len(raw)
    count = int.from_bytes(raw[-4:], "little")
    table = len(raw) - 4 - 4 * count
    begins = [int.from_bytes(raw[i:i + 4], "little") for i in range(table, len(raw) - 4, 4)] + [table]
    entries = [number(raw[begin:end]) for begin, end in zip(begins, begins[1:])]
    return [(rest[:size], rest[size:]) for size, rest in entries]


def store_cases():
    """Reads the uncompressed store files; the compressed ones as far as their footers go."""
    held = json.loads((HERE / "store.json").read_text())
    wanted = {bytes.fromhex(key): bytes.fromhex(value) for key, value in held["entries"]}
    for case in held["files"]:
        file = bytes.fromhex(case["file"])
        footer = file[-96:]
        assert file[:12] == b"PARTAGE\x1a\1\0\0\0" and int.from_bytes(file[12:16], "little") == crc32c(file[:12])
        assert footer[88:] == b"\x1aEGATRAP" and int.from_bytes(footer[84:88], "little") == crc32c(footer[:84])
        assert footer[0] == ["hashed", "ordered"].index(case["layout"])
        assert footer[1] == ["none", "lz4", "zstd"].index(case["compression"])
        keys, replaced, parts, key_bytes, value_bytes, data, index, dictionary = [
            int.from_bytes(footer[i:i + 8], "little") for i in range(20, 84, 8)]
        assert (keys, keys + replaced) == (len(wanted), len(held["entries"]))
        assert (key_bytes, value_bytes) == (sum(map(len, wanted)), sum(map(len, wanted.values())))
        end = 16 + data
        table = file[end:end + index]
        assert int.from_bytes(footer[4:8], "little") == crc32c(table) and 16 + data + index + dictionary + 96 == len(file)
        if case["compression"] == "none":
            pages = [int.from_bytes(table[i:i + 8], "little") for i in range(0, 8 * parts, 8)]
            ordered = case["layout"] == "ordered"
            entries = ordered_entries(file, end) if ordered else hashed_entries(file, end, pages)
            assert sorted(entries) == sorted(wanted.items()), case["layout"]
            assert not ordered or entries == sorted(entries)
    return held


def table_backup_cases():
    """Only the rows are given: the chunk is computed from them, and the manifest is read for its digest."""
    held = json.loads((HERE / "table_backup.json").read_text())
    content = b""
    for row in held["rows"]:
        key, value, ends = bytes.fromhex(row["key"]), bytes.fromhex(row["value"]), row["expires_ms"]
        content += len(key).to_bytes(2, "big") + bytes([ends is not None]) + len(value).to_bytes(4, "big")
        content += b"" if ends is None else ends.to_bytes(8, "big")
        content += key + value
    name = hashlib.sha256(content).hexdigest()
    head = b"partage chunk 1\n\0" + len(held["rows"]).to_bytes(4, "big") + len(content).to_bytes(4, "big")
    chunk = head + crc32c(head + content).to_bytes(4, "big") + content
    first, digest, text = held["manifest"].split("\n", 2)
    assert first == "partage table backup 1", first
    assert json.loads(text)["shards"][0]["chunks"][0]["digest"] == name
    manifest = "\n".join([first, hashlib.sha256(text.encode()).hexdigest(), text])
    first, digest, text = held["second_manifest"].split("\n", 2)
    assert first == "partage table backup 2", first
    assert json.loads(text)["shards"][0]["begin"] == {"name": "a"} and json.loads(text)["indexes"]
    second = "\n".join([first, hashlib.sha256(text.encode()).hexdigest(), text])
    computed = {"rows": held["rows"], "content": content.hex(), "name": name, "chunk": chunk.hex()}
    return computed | {"manifest": manifest, "second_manifest": second}


def ask_others():
    """Yields (who, hash, key, their value)."""
    for key in KEYS:
        if mmh3:
            yield "mmh3", "murmur3-32", key, mmh3.hash(key, 0, signed=False)
            h1, h2 = mmh3.hash64(key, 0, signed=False)
            yield "mmh3", "murmur3-x64-128", key, h1 << 64 | h2
        if xxhash:
            yield "xxhash", "xxh3-64", key, xxhash.xxh3_64_intdigest(key)
        if siphash24:
            digest = siphash24.siphash13(key, key=bytes(16)).digest()
            yield "siphash24", "sip-1-3", key, int.from_bytes(digest, "little")
    yield from ask_python()
    if shutil.which("java"):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder, "Ask.java")
            source.write_text(JAVA)
            lines = "\n".join(key.hex() for key in KEYS)
            out = subprocess.run(["java", source], input=lines, capture_output=True, text=True, check=True)
        for key, line in zip(KEYS, out.stdout.splitlines()):
            string, array = line.split()
            yield "java String.hashCode", "java-string", key, int(string, 16)
            # Arrays.hashCode(byte[]) is the same sum as Hadoop's hashBytes.
            yield "java Arrays.hashCode", "hadoop-bytes", key, int(array, 16)


def ask_python():
    """Python's own hash of bytes is SipHash-1-3 under the key (0, 0) when PYTHONHASHSEED is 0."""
    if sys.hash_info.algorithm != "siphash13":
        return
    program = "import sys\nfor l in sys.stdin: print(hash(bytes.fromhex(l.strip())))"
    keys = [key for key in KEYS if key]  # It answers 0 for the empty one without hashing.
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    lines = "\n".join(key.hex() for key in keys)
    out = subprocess.run([sys.executable, "-c", program], input=lines, env=env, capture_output=True, text=True, check=True)
    for key, line in zip(keys, out.stdout.split()):
        yield "python hash()", "sip-1-3", key, int(line) & M64


def differences(path, ours, theirs):
    """Compares as far as `ours` could be computed."""
    if isinstance(ours, dict):
        for name in theirs:
            yield from differences(f"{path}.{name}", ours.get(name), theirs[name])
    elif isinstance(ours, list) and len(ours) == len(theirs):
        for at, pair in enumerate(zip(ours, theirs)):
            yield from differences(f"{path}[{at}]", *pair)
    elif ours != theirs:
        yield f"{path}: computed {ours}, the file has {theirs}"


def main():
    files = {"hashes.json": hash_cases, "schemes.json": scheme_cases, "placements.json": placement_cases}
    files["metadata.json"] = metadata_cases
    files["store.json"] = store_cases
    files["partitions.json"] = partition_cases
    files["table_backup.json"] = table_backup_cases
    files["roles.json"] = role_cases
    files["shuffles.json"] = shuffle_cases
    files["shuffle_frames.json"] = shuffle_frame_cases
    if "--write" in sys.argv:
        chosen = sys.argv[sys.argv.index("--write") + 1 :] or files
        for name in chosen:
            (HERE / name).write_text(json.dumps(files[name](), indent=1, ensure_ascii=True) + "\n")
    skipped = []
    if xxhash is None:
        skipped.append("xxh3-64 (no module xxhash)")
        del HASHES["xxh3-64"]
    wrong = []
    for name, cases in files.items():
        held = json.loads((HERE / name).read_text())
        if xxhash is None:
            for case in held["cases"] if name == "hashes.json" else []:
                case["hashes"].pop("xxh3-64")
            if name == "shuffles.json":
                held["slots"] = []
            for kind in ("fixed", "hash_ranges"):
                if kind in held:
                    held[kind] = [case for case in held[kind] if case["hash"] != "xxh3-64"]
        wrong += differences(name, cases(), held)
    asked = {}
    for who, name, key, value in ask_others():
        asked[who] = asked.get(who, 0) + 1
        if HASHES[name][1](key) != value:
            wrong.append(f"{name} of {key.hex()}: {who} says {value:x}")
    print("asked:", ", ".join(f"{who} ({count} keys)" for who, count in asked.items()) or "nobody else")
    if skipped:
        print("not checked:", ", ".join(skipped))
    print("\n".join(wrong[:20]) or "all cases agree")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
