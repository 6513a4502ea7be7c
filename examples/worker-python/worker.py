#!/usr/bin/env python3
"""A sharded key-value service in one file, over the HTTP worker protocol and nothing but the standard library.

    partage keyspace create kv --hash md5
    worker.py --coordinator http://127.0.0.1:7400 --id a --port 8001

Python has no other hash of Partage than md5; keyspaces that are sharded by ranges of keys, or by name, need none.
`GET`, `PUT` and `DELETE /KEYSPACE/KEY` reach a key, in memory. A key that is not here is answered 421, with the
owner's name and address when they are known. See docs/src/protocols/worker-http.md for the protocol.

The shape is worth copying: one thread beats and decides, a few copy data from other workers, all others answer
requests, and one lock stands between them. So when an order to unload has been carried out, no request is still
inside; and a peer that does not answer delays the shards that are copied from it, and no heartbeat.

Data is deleted on an order to `unload_final` or on a permission, and for no other reason: not because orders name a
replica no longer, nor because the coordinator has ended this worker or has forgotten it.
"""
import argparse, hashlib, json, signal, sys, threading, time, urllib.error, urllib.parse, urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

args = argparse.ArgumentParser()
args.add_argument("--coordinator", required=True, help="its URL")
args.add_argument("--id", required=True, help="the name of this node, kept across restarts")
args.add_argument("--host", default="127.0.0.1")
args.add_argument("--port", type=int, required=True)
args.add_argument("--zone")
args.add_argument("--leave-within", type=float, default=60, help="seconds in which to hand over after SIGTERM")
args = args.parse_args()

FETCH_S, FETCHES = 5, 16  # how long a peer may take to answer, and how many are asked at once

lock = threading.Lock()
held = {}        # (keyspace, shard, placement) -> its Replica
keyspaces = {}   # name -> its brief
cluster = None   # the coordinator's, from the first welcome on
token = None     # proves that this is the process that registered; kept here and nowhere else
copiers = ThreadPoolExecutor(FETCHES)
copied = threading.Event()
lease_until = 0.0
leave_until = float("inf")
leaving = threading.Event()


def post(path, body, timeout=5.0):
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(args.coordinator + path, json.dumps(body).encode(), headers, method="POST")
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


class Replica:
    """One replica, as the orders want it and as it is. Read and changed under the lock."""

    def __init__(self, order):
        self.order, self.phase, self.epoch = order, "loading", 0
        self.data = None         # {key: value}; None until it has loaded for the first time
        self.withdrawn = False   # no order names it any more: it is not served, and its data is kept
        self.permission = False  # its data may be deleted although no order says so
        self.copying = False
        self.reason, self.tries, self.due = None, 0, 0.0

    def wanted(self):
        """The state it should be in; `kept` when no order names it."""
        if not self.withdrawn or self.order["state"] == "unload_final":
            return self.order["state"]
        return "unload_final" if self.permission else "kept"

    def take(self, order):
        if order["epoch"] < self.order["epoch"]:
            return  # older news
        if self.phase == "serving" and self.order["role"] == "leader" != order["role"]:
            self.phase = "ready"  # stops leading before it does anything else
        if self.withdrawn and self.phase == "kept":
            self.phase = "loading"  # taken back: from others if they have it, else from what was kept
        self.withdrawn = self.permission = False
        self.order, self.tries, self.due = order, 0, 0.0

    def permit(self, permission):
        """Not what an order names, nor data of a later epoch than the coordinator knows of."""
        self.permission |= self.withdrawn and permission["epoch"] >= max(self.order["epoch"], self.epoch)

    def failed(self, reason):
        self.reason, self.tries = str(reason), self.tries + 1
        self.due = time.monotonic() + min(0.1 * 2 ** self.tries, 10)

    def became(self, phase, epoch):
        self.phase, self.epoch, self.reason, self.tries = phase, epoch, None, 0

    def step(self):
        """Does what the order says, or lets a copier begin it: requests and heartbeats go on meanwhile."""
        order, wanted = self.order, self.wanted()
        if wanted in ("load", "live"):
            if wanted == "live" and self.phase == "ready" and order["role"] == "follower":
                self.epoch = order["epoch"]  # it leads no more; the leader is granted the shard only when it has heard that
            may = order["granted"] or wanted == "live" and self.phase == "loading"
            fetches = may and (self.phase == "loading" or wanted == "live" and self.phase == "ready")
            if fetches and not self.copying and time.monotonic() >= self.due:
                reason = cannot(order)
                if reason:
                    return self.failed(reason)
                self.copying = True
                copiers.submit(self.copy, order)
            elif wanted == "load" and self.phase == "ready":
                self.epoch = order["epoch"]
            elif self.phase == "serving" and (order["granted"] or order["role"] == "follower"):
                self.epoch = order["epoch"]
        elif wanted == "unload_final":
            self.data = None
            self.became("dropped", order["epoch"])
        else:  # the data stays: who takes over copies it, or it may be the only copy
            self.became("kept" if wanted == "kept" else "unloaded", order["epoch"])

    def copy(self, order):
        """In a thread of the copiers."""
        try:
            data, failure = fetch(order), None
        except Exception as error:
            data, failure = None, error
        with lock:
            self.copying = False
            if self.wanted() not in ("load", "live"):
                pass  # withdrawn or unloaded meanwhile
            elif failure is not None:
                self.failed(failure)
            elif self.phase == "loading":
                self.data = data if data is not None else self.data or {}
                self.became("ready", order["epoch"])
            elif self.order == order and self.phase == "ready":  # the former owner has stopped by now
                self.data = data if data is not None else self.data
                self.became("serving", order["epoch"])
            self.step()
        copied.set()


def cannot(order):
    """Why it can neither load nor serve that. What it is told to let go of and to drop, it can."""
    brief = keyspaces[order["replica"]["keyspace"]]
    if brief.get("durable"):
        return "this worker keeps its data in memory: create the keyspace without --durable"
    if brief["sharding"].get("hash", "md5") != "md5":
        return "this worker knows only the hash md5: create the keyspace with --hash md5"
    if brief["partition_key"]["type"] != "whole":
        return "this worker shards by whole keys only: create the keyspace without a partition key"
    return None


def sources(order):
    """The peers to copy from. In the second copy those that let go of the shard have all of its writes; a follower beside
    them may lack some."""
    left = [peer for peer in order["peers"] if peer["state"] == "unload"]
    if order["state"] == "live" and left:
        return left
    return [peer for peer in order["peers"] if peer["state"] in ("live", "unload")]


def fetch(order):
    """What other replicas of the shard (or those it was split or merged from) have; None when none has any."""
    keyspace, data = order["replica"]["keyspace"], None
    for peer in sources(order):
        url = f"http://{peer['address']}/partage/copy/{keyspace}/{peer['placement']}"
        try:
            with urllib.request.urlopen(url, timeout=FETCH_S) as answer:
                copy = {bytes.fromhex(k): bytes.fromhex(v) for k, v in json.load(answer).items()}
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            continue  # another kind of worker, or one that has not loaded: it has no data to give
        data = (data or {}) | {k: v for k, v in copy.items() if holds(keyspace, order["bounds"], k)}
    return data


def refuse(orders):
    """Why orders are not obeyed: they come from another cluster, or from one whose state was set back."""
    if orders["cluster"] != cluster:
        return f"the coordinator is of cluster {orders['cluster']}, this worker of {cluster}"
    for brief in orders["keyspaces"]:
        known = keyspaces.get(brief["name"], brief)
        theirs, ours = ((each["first_shard"], each["generation"]["sequence"]) for each in (brief, known))
        if theirs < ours:
            return f"the coordinator has {brief['name']} at an earlier generation than this worker was told"
    return None


def take(orders):
    with lock:
        for brief in orders["keyspaces"]:
            keyspaces[brief["name"]] = brief
        named = [tuple(order["replica"].values()) for order in orders["changed"]]
        removed = [tuple(replica.values()) for replica in orders["removed"]]
        for key, one in held.items():
            if key in removed or orders["base"] == 0 and key not in named:  # base 0: the orders are the whole
                one.withdrawn = True
        for permission in orders.get("permissions", []):
            one = held.get(tuple(permission["replica"].values()))
            if one:
                one.permit(permission)
        for key, order in zip(named, orders["changed"]):
            if key in held:
                held[key].take(order)
            else:
                held[key] = Replica(order)


def work():
    """Whether something is on its way that will have to be reported."""
    with lock:
        for one in held.values():
            one.step()
        return any(one.copying or one.reason for one in held.values())


def forget(told):
    """What is deleted, reported so, and not ordered any more."""
    with lock:
        for report in told:
            key = tuple(report["replica"].values())
            if report["phase"] == "dropped" and held[key].withdrawn:
                del held[key]


def reports():
    told = []
    with lock:
        for one in held.values():
            report = {"replica": one.order["replica"], "phase": one.phase, "epoch": one.epoch}
            if one.reason:
                report |= {"phase": "failed", "reason": one.reason, "attempts": one.tries}
            told.append(report)
    return told


def stored():
    """What is kept, for a registration."""
    with lock:
        return [{"replica": one.order["replica"], "bounds": one.order["bounds"],
                 "epoch": max(one.epoch, one.order["epoch"])}
                for one in held.values() if one.withdrawn and one.phase == "kept"]


def register(incarnation=None):
    """As a new process, or after the coordinator restarted as the one that it is."""
    global cluster, token
    spec = {"id": args.id, "address": f"{args.host}:{args.port}", "check_path": "/partage/worker"}
    if args.zone:
        spec["zone"] = args.zone
    if incarnation is not None:
        spec |= {"incarnation": incarnation, "token": token}
    if cluster:
        spec |= {"cluster": cluster, "stored": stored()}
    welcome = post("/v1/worker/register", spec)
    if cluster not in (None, welcome["cluster"], *welcome.get("continues", [])):
        raise ValueError(f"the coordinator is of cluster {welcome['cluster']}, this worker of {cluster}: it is not "
                         "obeyed, and all data is kept. Give it the coordinators of its own cluster")
    cluster, token = welcome["cluster"], welcome.get("token", token)
    return welcome


def attend():
    """Registers, then beats until it may go."""
    global lease_until
    while True:
        if leaving.is_set():
            return  # nothing is served
        try:
            welcome = register()
        except (OSError, ValueError) as error:
            said = error.read().decode() if isinstance(error, urllib.error.HTTPError) else error
            print(f"register: {said}", file=sys.stderr)
            leaving.wait(1)
            continue
        me = {"node": args.id, "incarnation": welcome["incarnation"], "token": token}
        if beat(me, welcome["lease_ms"] / 1000, welcome["heartbeat_ms"] / 1000):
            with lock:
                left_with = [key for key, one in held.items() if one.phase not in ("dropped", "kept")]
                withdraw_all()  # from here on nothing is believed
            try:
                post("/v1/worker/leave", me)
            except (OSError, ValueError) as error:
                print(f"leave: {error}", file=sys.stderr)
            time.sleep(0.5)  # clients on their way are still answered
            sys.exit(f"left with {len(left_with)} replicas that were not handed over" if left_with else 0)


def withdraw_all():
    """Under the lock: this incarnation has ended. Nothing is served any more, and everything is kept."""
    global lease_until
    lease_until = 0.0
    for one in held.values():
        one.withdrawn = True
        one.step()


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
        print(f"register again: {error.read().decode()}", file=sys.stderr)
        return False
    except (OSError, ValueError) as error:  # told again by the next beat whether it goes on
        print(f"register again: {error}", file=sys.stderr)
        return False


def beat(me, lease_s, rest_s):
    """Beats; true when it may go or must, false when it has to register anew."""
    sequence, applied, said, is_heard = 0, 0, None, True
    while not must_go(is_heard):
        copied.clear()
        works = work()
        sequence, told = sequence + 1, reports()
        # Waits for news only when there is none to tell, and none to come from the copiers.
        wait_ms = int(lease_s * 250) if told == said and not works and not leaving.is_set() else 0
        sent = time.monotonic()
        form = me | {"sequence": sequence, "sent_at_ms": int(sent * 1000), "applied": applied, "whole": True,
                     "reports": told, "leaving": leaving.is_set(), "lease_expired": sent >= lease_until}
        try:
            orders = post(f"/v1/worker/heartbeat?wait_ms={wait_ms}", form, timeout=lease_s)
            reason = refuse(orders)
            if reason:
                raise ValueError(f"{reason}: it is not obeyed, and all data is kept")
        except urllib.error.HTTPError as error:
            is_heard = False
            print(f"heartbeat: {error.read().decode()}", file=sys.stderr)
            try:
                if error.code == 410:
                    raise Ended
                if error.code == 428 and registered_again(me["incarnation"]):
                    applied = 0
                    continue
            except Ended:
                with lock:
                    withdraw_all()
                return False
            time.sleep(rest_s)
            continue
        except (OSError, ValueError) as error:  # it goes on as long as its lease does
            is_heard = False
            print(f"heartbeat: {error}", file=sys.stderr)
            time.sleep(rest_s)
            continue
        is_heard = True
        if orders["may_go"]:
            return True
        forget(told)
        take(orders)
        believe_until(sent + orders["lease"]["lease_ms"] / 1000)  # from when it was sent
        applied, said = orders["version"], told
        if wait_ms == 0:
            copied.wait(min(rest_s, 0.05))
    return True


def believe_until(end):
    global lease_until
    with lock:
        lease_until = max(lease_until, end)  # a lease of 0 ms renews nothing


def refused(status, kind, what, help, more={}, **headers):
    """An error as all of Partage look."""
    error = {"kind": kind, "message": f"{what}: {help}", "help": help} | more
    return status, json.dumps({"error": error}).encode() + b"\n", headers


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
                found = [one for key, one in held.items() if key[::2] == (words[2].decode(), int(words[3]))
                         and one.data is not None and not one.withdrawn]
                copy = {k.hex(): v.hex() for one in found for k, v in one.data.items()}
            return self.answer(200, json.dumps(copy).encode()) if found else self.answer(404)
        if len(words) != 2:
            return self.answer(404)
        with lock:
            status, out, headers = self.reach(words[0].decode(), words[1], body)
        self.answer(status, out, partage_node=args.id, **headers)

    def reach(self, keyspace, key, value):
        """Under the lock: what is decided here is true until it is done."""
        mine = [one for name, one in held.items()
                if name[0] == keyspace and not one.reason and holds(keyspace, one.order["bounds"], key)]
        one = next((one for one in mine if one.wanted() == "live"), None)
        writes = self.command != "GET"
        if one and not (writes and one.order["role"] == "follower"):
            exclusive = keyspaces[keyspace]["ownership"] == "exclusive"
            if one.phase != "serving":
                return refused(503, "soon", "the shard is being handed over to this node", "try again", retry_after="1")
            if exclusive and time.monotonic() >= lease_until:
                return refused(503, "lapsed", "this node has no lease", "try again", retry_after="1")
            if writes and self.command == "PUT":
                one.data[key] = value
            elif writes:
                one.data.pop(key, None)
            found = one.data.get(key)
            # The process may have been paused within: then another node may own the shard already.
            if exclusive and time.monotonic() >= lease_until:
                return refused(503, "lapsed_while_served", "the lease ran out meanwhile", "look whether it was done",
                               retry_after="1")
            return (200 if writes or found is not None else 404), found or b"", {"partage_epoch": str(one.epoch)}
        owners = [{"node": peer["node"], "address": peer["address"]} for each in mine for peer in each.order["peers"]
                  if not each.withdrawn and peer["state"] == "live" and peer["role"] == "leader"]
        more, headers = {"owner": owners[0]} if owners else {}, {}
        if owners:
            headers = {"partage_owner_node": owners[0]["node"], "partage_owner_address": owners[0]["address"]}
        if keyspace in keyspaces:
            headers["partage_generation"] = str(keyspaces[keyspace]["generation"]["sequence"])
        return refused(421, "misdirected", "this node does not serve the key", "ask for a newer map", more, **headers)

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
