#!/usr/bin/env python3
"""Checks what a shuffle of records of a fixed length has made of its input, with no code of Partage and no package.

usage: check_shuffle.py --record BYTES --key BYTES [--place FROM:TO] FILE... -o FOLDER

FOLDER has the parts that `partage shuffle sort` makes: part-00000, part-00001 and so on. They have

  - all records of the files, each once: as many, and the same sum of 128-bit hashes, whatever their order;
  - the order of their first --key bytes, within each part and from part to part;
  - sizes that differ by one record at most.

With --place, the bytes FROM to TO (not included) of a record are a number, most significant byte first, that grows along the
files. Then records of one key must be in the order of the files, and one that is there twice is named. Ten gigabytes take some
minutes on one core. The exit code is 0 if all is right, 1 if not, 2 if the call was wrong.
"""

import argparse
import hashlib
import os
import re
import sys


class Wrong(Exception):
    """What is not as it must be."""


class Count:
    """How many records there are, and the sum of their hashes modulo 2^128, which does not depend on their order."""

    def __init__(self):
        self.records, self.sum = 0, 0

    def add(self, record):
        self.records += 1
        self.sum += int.from_bytes(hashlib.blake2b(record, digest_size=16).digest(), "little")

    def same_as(self, other):
        if self.records != other.records:
            raise Wrong(f"{self.records} records became {other.records}")
        if (self.sum - other.sum) % (1 << 128):
            raise Wrong(f"the {self.records} records that came out are not those that went in")


class Order:
    """Takes what is sorted, one after the other, as keys and places that Python compares."""

    def __init__(self):
        self.last = None

    def add(self, key, place, where):
        if self.last is not None:
            last_key, last_place = self.last
            if key < last_key:
                raise Wrong(f"{where}: the key {key!r} comes behind {last_key!r}")
            if place is not None and key == last_key and place == last_place:
                raise Wrong(f"{where}: the record of the key {key!r} and the place {place!r} is there twice")
            if place is not None and key == last_key and place < last_place:
                raise Wrong(f"{where}: of the key {key!r} the place {place!r} comes behind {last_place!r}")
        self.last = key, place


def equal_parts(sizes):
    if sizes and max(sizes) - min(sizes) > 1:
        raise Wrong(f"the parts have {min(sizes)} to {max(sizes)} records")


def records_of(path, length):
    size = os.path.getsize(path)
    if size % length:
        raise Wrong(f"{path} has {size} bytes, which are no whole number of records of {length}")
    with open(path, "rb") as file:
        while piece := file.read(length * 16_384):
            for at in range(0, len(piece), length):
                yield piece[at:at + length]


def parts_of(folder):
    names = sorted(os.listdir(folder))
    for number, name in enumerate(names):
        if not re.fullmatch(rf"part-{number:05}(\..*)?", name):
            raise Wrong(f"{folder} has {name} where part-{number:05} should be")
    return [os.path.join(folder, name) for name in names]


def check(files, folder, length, key, place=None):
    """Raises Wrong, or says how many records and parts there are."""
    before, after, order, sizes = Count(), Count(), Order(), []
    for path in files:
        for record in records_of(path, length):
            before.add(record)
    for path in parts_of(folder):
        began = after.records
        for record in records_of(path, length):
            after.add(record)
            at = int.from_bytes(record[place[0]:place[1]], "big") if place else None
            order.add(record[:key], at, f"{path}, record {after.records - began - 1}")
        sizes.append(after.records - began)
    before.same_as(after)
    equal_parts(sizes)
    return after.records, len(sizes)


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("-o", dest="folder", required=True)
    parser.add_argument("--record", type=int, required=True)
    parser.add_argument("--key", type=int, required=True)
    parser.add_argument("--place", type=lambda text: tuple(map(int, text.split(":"))))
    given = parser.parse_args()
    if not 0 < given.key <= given.record or (given.place and len(given.place) != 2):
        parser.error("--key is 1 to --record bytes, and --place FROM:TO")
    try:
        records, parts = check(given.files, given.folder, given.record, given.key, given.place)
    except Wrong as wrong:
        sys.exit(f"wrong: {wrong}")
    print(f"right: {records} records in {parts} parts, each once, in order")


if __name__ == "__main__":
    main()
