#!/usr/bin/env python3
"""A sharded key-value service in one file, over the HTTP worker protocol and nothing but the standard library.

    partage keyspace create kv --hash md5
    worker.py --coordinator http://127.0.0.1:7400 --id a --port 8001

Python has no other hash of Partage than md5; keyspaces that are sharded by ranges of keys, or by name, need none.
`GET`, `PUT` and `DELETE /KEYSPACE/KEY` reach a key, in memory. A key that is not here is answered 421, with the
owner's address when it is known. See docs/src/protocols/worker-http.md for the protocol.

The shape is worth copying: one thread beats and carries out orders, all others answer requests, and one lock
stands between them. So when an order to unload has been carried out, no request is still inside.
"""
import argparse, hashlib, json, signal, sys, threading, time, urllib.error, urllib.parse, urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

args = argparse.ArgumentParser()
args.add_argument("--coordinator", required=True, help="its URL")
args.add_argument("--id", required=True, help="the name of this node, kept across restarts")
args.add_argument("--host", default="127.0.0.1")
args.add_argument("--port", type=int, required=True)
args.add_argument("--zone")
args.add_argument("--leave-within", type=float, default=60, help="seconds in which to hand over after SIGTERM")
args = args.parse_args()

lock = threading.Lock()
held = {}        # (keyspace, shard, placement) -> {"order", "phase", "epoch", "reason", "data": {key: value}}
keyspaces = {}   # name -> its brief
lease_until = 0.0
leave_until = float("inf")
leaving = threading.Event()


def post(path, body, timeout=5.0):
    request = urllib.request.Request(args.coordinator + path, json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.loads(answer.read() or "null")


def key_bytes(form):  # a key is text, or {"hex": "00ff"} when it is not UTF-8
    return bytes.fromhex(form["hex"]) if isinstance(form, dict) else form.encode()


def holds(keyspace, bounds, key):
    """Whether a shard of these bounds holds the key. md5 is the only hash here: others are not in Python."""
    if bounds["type"] == "keys":
        begin, end = key_bytes(bounds["begin"]), key_bytes(bounds["end"])
        return begin <= key and (not end or key < end)
    if bounds["type"] == "name":
        return key == bounds["name"].encode()
    value = int.from_bytes(hashlib.md5(key).digest(), "big")
    if bounds["type"] == "slot":
        return value % bounds["of"] == bounds["slot"]
    return int(bounds["first"], 16) <= value >> 64 <= int(bounds["last"], 16)


def cannot(order):
    """Why it can neither load nor serve that. What it is told to let go of and to drop, it can."""
    brief = keyspaces[order["replica"]["keyspace"]]
    if order["state"] not in ("load", "live"):
        return None
    if brief["sharding"].get("hash", "md5") != "md5":
        return "this worker knows only the hash md5: create the keyspace with --hash md5"
    if brief["partition_key"]["type"] != "whole":
        return "this worker shards by whole keys only: create the keyspace without a partition key"
    return None


def fetch(replica, order):
    """Takes over what other replicas of the shard (or those it was split or merged from) have."""
    data = {}
    for peer in order["peers"]:
        if peer["state"] in ("live", "unload"):
            url = f"http://{peer['address']}/partage/copy/{replica['keyspace']}/{peer['shard']}"
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    copy = {bytes.fromhex(k): v for k, v in json.load(answer).items()}
            except urllib.error.HTTPError as error:
                if error.code != 404:
                    raise
                copy = {}  # another kind of worker, which has no data to give
            data |= {k: v for k, v in copy.items() if holds(replica["keyspace"], order["bounds"], k)}
    return data


def carry_out(one):
    """One step towards what the order says. The copying goes on outside of the lock, as requests do meanwhile."""
    order, replica, state = one["order"], one["order"]["replica"], one["order"]["state"]
    serves, current = one["phase"] == "serving", one["epoch"] == order["epoch"]
    if state == "load" and one["phase"] == "loading":
        one["data"] = fetch(replica, order)
        one["phase"], one["epoch"] = "ready", order["epoch"]
    elif state == "live" and order["granted"] and not serves:
        data = fetch(replica, order) or one["data"]  # once more: the former owner has stopped by now
        with lock:
            one["data"], one["phase"], one["epoch"] = data, "serving", order["epoch"]
    elif state == "live" and serves and not current and (order["granted"] or order["role"] == "follower"):
        one["epoch"] = order["epoch"]
    elif state == "unload" and one["phase"] != "unloaded" or state == "unload" and not current:
        with lock:  # the data stays: whoever takes over copies it
            one["phase"], one["epoch"] = "unloaded", order["epoch"]
    elif state == "unload_final" and one["phase"] != "dropped":
        with lock:
            one["data"], one["phase"], one["epoch"] = {}, "dropped", order["epoch"]


def take(orders):
    with lock:
        if orders["base"] == 0:  # they are the whole: what is not named is not wanted
            named = [tuple(o["replica"].values()) for o in orders["changed"]]
            for key in [key for key in held if key not in named]:
                del held[key]
        for brief in orders["keyspaces"]:
            keyspaces[brief["name"]] = brief
        for replica in orders["removed"]:
            held.pop(tuple(replica.values()), None)
        for order in orders["changed"]:
            one = held.setdefault(tuple(order["replica"].values()),
                                  {"phase": "loading", "epoch": 0, "data": {}, "tries": 0})
            if one["phase"] == "serving" and one["order"]["role"] == "leader" != order["role"]:
                one["phase"] = "ready"  # stops leading before it does anything else
            one["order"] = order
    for one in held.values():
        try:
            reason = cannot(one["order"])
            if reason:
                raise ValueError(reason)
            carry_out(one)
            one["reason"], one["tries"] = None, 0
        except Exception as error:  # tried again with the next beat
            one["reason"], one["tries"] = str(error), one["tries"] + 1


def reports():
    told = []
    for one in held.values():
        report = {"replica": one["order"]["replica"], "phase": one["phase"], "epoch": one["epoch"]}
        if one.get("reason"):
            report |= {"phase": "failed", "reason": one["reason"], "attempts": one["tries"]}
        told.append(report)
    return told


def register(incarnation=None):
    """As a new process, or after the coordinator restarted as the one that it is."""
    spec = {"id": args.id, "address": f"{args.host}:{args.port}", "check_path": "/partage/worker"}
    if args.zone:
        spec["zone"] = args.zone
    if incarnation is not None:
        spec["incarnation"] = incarnation
    return post("/v1/worker/register", spec)


def attend():
    """Registers, then beats until it may go."""
    global lease_until
    while True:
        if leaving.is_set():
            return  # nothing is held
        try:
            welcome = register()
        except (OSError, ValueError) as error:
            print(f"register: {error}", file=sys.stderr)
            leaving.wait(1)
            continue
        with lock:
            held.clear()
            lease_until = 0.0
        me = {"node": args.id, "incarnation": welcome["incarnation"]}
        if beat(me, welcome["lease_ms"] / 1000, welcome["heartbeat_ms"] / 1000):
            with lock:
                left_with = [key for key, one in held.items() if one["phase"] != "dropped"]
                held.clear()  # from here on nothing is believed
            try:
                post("/v1/worker/leave", me)
            except (OSError, ValueError) as error:
                print(f"leave: {error}", file=sys.stderr)
            time.sleep(0.5)  # clients on their way are still answered
            sys.exit(f"left with {len(left_with)} replicas that were not handed over" if left_with else 0)


class Ended(Exception):
    """The coordinator does not know this incarnation any more."""


def must_go(is_heard):
    """Whether a worker that leaves waits no longer: it had its time, or nobody is there to hand over to."""
    now = time.monotonic()
    return leaving.is_set() and (now >= leave_until or not is_heard and now >= lease_until)


def registered_again(incarnation):
    try:
        register(incarnation)
        return True
    except urllib.error.HTTPError as error:
        if error.code == 410:
            raise Ended from None
        print(f"register again: {error}", file=sys.stderr)
        return False
    except (OSError, ValueError) as error:  # told again by the next beat whether it goes on
        print(f"register again: {error}", file=sys.stderr)
        return False


def beat(me, lease_s, rest_s):
    """Beats; true when it may go or must, false when it has to register anew."""
    global lease_until
    sequence, applied, said, is_heard = 0, 0, None, True
    while not must_go(is_heard):
        sequence, told = sequence + 1, reports()
        # Waits for news only when there is none to tell.
        wait_ms = int(lease_s * 250) if told == said and not leaving.is_set() else 0
        sent = time.monotonic()
        form = me | {"sequence": sequence, "sent_at_ms": int(sent * 1000), "applied": applied, "whole": True,
                     "reports": told, "leaving": leaving.is_set()}
        try:
            orders = post(f"/v1/worker/heartbeat?wait_ms={wait_ms}", form, timeout=lease_s)
        except urllib.error.HTTPError as error:
            if error.code == 410:
                return False
            is_heard = False
            print(f"heartbeat: {error.read().decode()}", file=sys.stderr)
            try:
                if error.code == 428 and registered_again(me["incarnation"]):
                    applied = 0
                    continue
            except Ended:
                return False
            time.sleep(rest_s)
            continue
        except (OSError, ValueError) as error:  # it goes on as long as its lease does
            is_heard = False
            print(f"heartbeat: {error}", file=sys.stderr)
            time.sleep(rest_s)
            continue
        is_heard = True
        with lock:
            lease_until = sent + orders["lease"]["lease_ms"] / 1000  # from when it was sent
        if orders["may_go"]:
            return True
        take(orders)
        applied, said = orders["version"], told
        if wait_ms == 0:
            time.sleep(min(rest_s, 0.05))
    return True


class Service(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def serve(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        words = [urllib.parse.unquote_to_bytes(word) for word in self.path[1:].split("/", 3)]
        if words == [b"partage", b"worker"]:
            return self.answer(200, args.id.encode())
        if words[:2] == [b"partage", b"copy"] and len(words) == 4:
            with lock:
                found = [one for key, one in held.items() if key[:2] == (words[2].decode(), int(words[3]))]
                copy = {k.hex(): v for one in found for k, v in one["data"].items()}
            return self.answer(200, json.dumps(copy).encode())
        if len(words) != 2:
            return self.answer(404)
        with lock:
            status, out, headers = self.reach(words[0].decode(), words[1], body.decode())
        self.answer(status, out, **headers)

    def reach(self, keyspace, key, value):
        """Under the lock: what is decided here is true until it is done."""
        mine = [one for name, one in held.items()
                if name[0] == keyspace and not one.get("reason") and holds(keyspace, one["order"]["bounds"], key)]
        one = next((one for one in mine if one["order"]["state"] == "live"), None)
        writes = self.command != "GET"
        if one and not (writes and one["order"]["role"] == "follower"):
            exclusive = keyspaces[keyspace]["ownership"] == "exclusive"
            if one["phase"] != "serving" or exclusive and time.monotonic() >= lease_until:
                return 503, b"not yet, or not any more\n", {"retry_after": "1"}
            if writes and self.command == "PUT":
                one["data"][key] = value
            elif writes:
                one["data"].pop(key, None)
            found = one["data"].get(key)
            headers = {"partage_node": args.id, "partage_epoch": str(one["epoch"])}
            return (200 if writes or found is not None else 404), (found or "").encode(), headers
        owners = [peer for each in mine for peer in each["order"]["peers"]
                  if peer["state"] == "live" and peer["role"] == "leader"]
        return 421, b"not here\n", {"partage_owner_address": owner["address"] for owner in owners[:1]}

    do_GET = do_PUT = do_DELETE = serve

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, address):
        pass  # a client that hangs up is its own business


def leave(*_):
    global leave_until
    leave_until = min(leave_until, time.monotonic() + args.leave_within)
    leaving.set()


signal.signal(signal.SIGTERM, leave)
server = Server((args.host, args.port), Service)
threading.Thread(target=server.serve_forever, daemon=True).start()
attend()
