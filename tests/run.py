#!/usr/bin/env python3
"""Runs the tests of the workspace, several test programs at once.

    tests/run.py [--jobs N] [--alone NAME]... -- CARGO-ARGUMENTS

Most test programs wait for time-outs and servers, and one after the other they leave the cores idle. Cargo builds them and
says where they are; this starts the longest first (as the last run measured them), N at a time, each in the folder and with
the environment that Cargo gives it. What a program prints comes in one piece when it has ended. Documentation tests run
beside them, by Cargo itself. The exit code is 0 if all have passed.
"""

import json
import os
import queue
import subprocess
import sys
import threading
import time


def arguments(given):
    """The number of jobs, the names of programs that run with nothing beside them, and what is for Cargo."""
    jobs, alone, given = 3, set(), list(given)
    while given and given[0] != "--":
        flag = given.pop(0)
        if flag == "--jobs" and given:
            jobs = max(1, int(given.pop(0)))
        elif flag == "--alone" and given:
            alone.add(given.pop(0))
        else:
            sys.exit(__doc__)
    return jobs, alone, given[1:]


def built(cargo):
    """The test programs: folder of the package, source and executable of each."""
    command = ["cargo", "test", "--no-run", "--message-format=json-render-diagnostics", *cargo]
    build = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    programs = []
    for line in build.stdout:
        told = json.loads(line)
        if told["reason"] != "compiler-artifact" or not told.get("executable"):
            continue
        if told["profile"]["test"]:
            programs.append((os.path.dirname(told["manifest_path"]), told["target"]["src_path"], told["executable"]))
    if build.wait() != 0:
        sys.exit(build.returncode)
    return programs


def job(package, source, executable):
    """What to run: its name, such as `crates/cli tests/up.rs`, command, folder and environment."""
    name = f"{os.path.relpath(package)} {os.path.relpath(source, package)}"
    return name, [executable], package, {"CARGO_MANIFEST_DIR": package, "CARGO": "cargo"}


class Runner:
    """Runs programs and keeps what became of them."""

    def __init__(self, times_file):
        self.times_file = times_file
        self.lock = threading.Lock()
        self.failed = []
        try:
            with open(times_file, encoding="utf-8") as file:
                self.times = json.load(file)
        except (OSError, ValueError):
            self.times = {}

    def run(self, name, command, folder, more):
        began = time.monotonic()
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, **more}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )
        took = time.monotonic() - began
        with self.lock:
            self.times[name] = round(took, 1)
            if done.returncode != 0:
                self.failed.append(name)
            print(f"\n     Running {name}: {took:.0f} s", flush=True)
            sys.stdout.buffer.write(done.stdout)
            sys.stdout.buffer.flush()

    def run_all(self, work, jobs):
        """All of it, the longest first; one that was never measured counts as long."""
        waiting = queue.SimpleQueue()
        for one in sorted(work, key=lambda one: -self.times.get(one[0], 1e9)):
            waiting.put(one)

        def worker():
            while True:
                try:
                    one = waiting.get_nowait()
                except queue.Empty:
                    return
                self.run(*one)

        threads = [threading.Thread(target=worker) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def keep_times(self):
        with open(self.times_file, "w", encoding="utf-8") as file:
            json.dump(self.times, file, indent=1, sort_keys=True)


def main():
    jobs, alone, cargo = arguments(sys.argv[1:])
    work = [job(*program) for program in built(cargo)]
    by_cargo = ("documentation tests", ["cargo", "test", "--doc", "--no-fail-fast", *cargo], os.getcwd(), {})
    folder = os.environ.get("CARGO_TARGET_DIR", "target")
    runner = Runner(os.path.join(folder, "test-times.json"))
    runner.run_all([one for one in work if one[0] not in alone] + [by_cargo], jobs)
    runner.run_all([one for one in work if one[0] in alone], 1)
    runner.keep_times()
    for name in runner.failed:
        print(f"failed: {name}")
    sys.exit(1 if runner.failed else 0)


if __name__ == "__main__":
    main()
