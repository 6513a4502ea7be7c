#!/usr/bin/env python3
"""Runs all test programs of the workspace: what computes one after the other, beside it what waits, two at once.

Most test programs start servers and wait for them, and use a tenth of a core; `cargo test` runs them one by one. Here cargo
builds, and tells what it built; then three lanes run the programs. One lane runs those that compute (unit tests, the
simulator, the fuzzed parsers, the rules of the house), two lanes those that wait (the tests in the `tests/` folder of a crate and the
examples). The examples in doc comments come last, by cargo. What a program prints is printed when it ends, so programs do not
mix their lines.

A test that waits for real servers and fails beside other programs runs a second time, alone, after all others. If it passes
then, it is named `flaky` at the end, and what its first run printed stays in the output: it is still a finding. A test that
computes gives the same answer each time, and has no second run.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

# Packages whose integration tests compute too.
COMPUTE = {"partage-core", "partage-service", "sim", "fuzz", "house", "partage-wire"}
WAITING_LANES = 2
# A program that runs for longer hangs: the longest takes three minutes.
LIMIT_S = 1200
# So many programs may have tests that run a second time; where more fail, something is broken.
AGAIN = 8


def build():
    """Builds all test programs; gives name, program, folder and kind of each, in cargo's order."""
    cargo = subprocess.run(
        ["cargo", "test", "--locked", "--workspace", "--no-run", "--message-format=json-render-diagnostics"],
        stdout=subprocess.PIPE, check=False, text=True)
    if cargo.returncode != 0:
        sys.exit("test result: FAILED. 0 passed; 1 failed; the tests do not build")
    programs = []
    for line in cargo.stdout.splitlines():
        built = json.loads(line)
        if built.get("reason") != "compiler-artifact" or not built["executable"] or not built["profile"]["test"]:
            continue
        folder = os.path.dirname(built["manifest_path"])
        target = built["target"]
        package = os.path.relpath(folder, os.getcwd())
        computes = "test" not in target["kind"] or package_name(built["package_id"]) in COMPUTE
        programs.append((f"{package}: {target['kind'][0]} {target['name']}", built["executable"], folder, computes))
    return programs


def package_name(package_id):
    """The package's name in an id such as `path+file:///x/crates/core#partage-core@0.1.0` or `…/tests/sim#0.1.0`."""
    path, _, last = package_id.rpartition("#")
    return last.split("@")[0] if "@" in last else path.rpartition("/")[2]


class Runner:
    """Takes programs from two lists; one lock for printing and for the lists."""

    def __init__(self, programs):
        self.lock = threading.Lock()
        self.lists = {True: [p for p in programs if p[3]], False: [p for p in programs if not p[3]]}
        self.running = set()
        self.stopped = False
        self.failed = []
        self.again = []
        self.flaky = []

    def lane(self, computes):
        while True:
            with self.lock:
                if self.stopped or not self.lists[computes]:
                    return
                name, program, folder, _ = self.lists[computes].pop(0)
                process = self.start([program], folder)
            code, said, took = self.wait_for(name, process)
            with self.lock:
                tests = [] if computes else failed_tests(said)
                if code != 0 and tests and len(self.again) < AGAIN:
                    print(f"\n     Running {name}\n{without_sum(said)}\n({name}: {took:.1f} s; failed, runs again)", flush=True)
                    self.again.append((name, [program, "--exact", *tests], folder, said))
                else:
                    self.note(name, code, said, took)

    def run_again(self):
        """The tests that failed beside others, alone. The sum counts the tests of their programs once."""
        for name, command, folder, first in self.again:
            if self.stopped:
                return
            with self.lock:
                process = self.start(command, folder)
            code, said, took = self.wait_for(name, process)
            if code == 0:
                self.flaky.append(f"{name}: {' '.join(command[2:])}")
                passed = sum(int(n) for n in re.findall(r"^test result: FAILED\. (\d+) passed", first, re.M))
                said += f"\ntest result: ok. {passed} passed; 0 failed; in the first run"
            self.note(f"{name}, again", code, said, took)

    def start(self, command, folder):
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, "CARGO_MANIFEST_DIR": folder}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        self.running.add(process)
        return process

    def wait_for(self, name, process):
        """Waits for the end of a program; gives its exit code, what it printed, and the seconds that it took."""
        began = time.monotonic()
        hangs = threading.Timer(LIMIT_S, stop, [process])
        hangs.start()
        # Ends when the program does, or what it has started and did not stop.
        said = process.stdout.read().decode(errors="replace")
        code = process.wait()
        hangs.cancel()
        took = time.monotonic() - began
        with self.lock:
            self.running.discard(process)
        return code, said, took

    def note(self, name, code, said, took):
        """Prints what a program has printed, and counts it."""
        print(f"\n     Running {name}\n{said.rstrip()}\n({name}: {took:.1f} s)", flush=True)
        if code == 0:
            return
        self.failed.append(name)
        if "test result:" not in said:
            why = f"it was stopped after {LIMIT_S} s" if took >= LIMIT_S else f"it ended with {code}"
            print(f"test result: FAILED. 0 passed; 1 failed; {name}: {why}", flush=True)

    def stop(self, *_):
        self.stopped = True
        for process in list(self.running):
            stop(process)


def failed_tests(said):
    """The names of the tests that failed, from the last list that the test program prints; none if it printed no list."""
    lists = said.split("\nfailures:\n")
    if len(lists) < 3:
        return []
    return re.findall(r"^    (\S+)$", lists[-1], re.M)


def without_sum(said):
    """What a program has printed, without the line that the sum over all tests counts."""
    return re.sub(r"^test result:", "result of the first run:", said.rstrip(), flags=re.M)


def stop(process):
    """Ends a program with all that it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def main():
    began = time.monotonic()
    runner = Runner(build())
    print(f"(built in {time.monotonic() - began:.0f} s)", flush=True)
    began = time.monotonic()
    for cause in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(cause, runner.stop)
    lanes = [threading.Thread(target=runner.lane, args=[computes]) for computes in [True] + [False] * WAITING_LANES]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    runner.run_again()
    if runner.stopped:
        sys.exit("stopped")
    docs = subprocess.run(["cargo", "test", "--locked", "--workspace", "--no-fail-fast", "--doc"], check=False)
    if docs.returncode != 0:
        runner.failed.append("the examples in doc comments")
    print(f"(all ran in {time.monotonic() - began:.0f} s)")
    for name in runner.flaky:
        print(f"flaky, passed alone: {name}")
    for name in runner.failed:
        print(f"failed: {name}")
    sys.exit(1 if runner.failed else 0)


if __name__ == "__main__":
    main()
