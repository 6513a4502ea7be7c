"""redis-py, as people use it, against a table: python redis_py.py PORT [PORT_OF_A_CLUSTER]

Or python redis_py.py survive PORT_OF_A_CLUSTER TABLE."""

import sys
import threading
import time

import redis


def plain(port, protocol):
    client = redis.Redis(port=port, protocol=protocol, decode_responses=True)
    prefix = f"{{py{protocol}}}"

    def name(key):
        return prefix + key

    assert client.ping()
    assert client.set(name("a"), "1", ex=100) and client.get(name("a")) == "1"
    assert 0 < client.ttl(name("a")) <= 100
    assert client.set(name("a"), "2", nx=True) is None
    assert client.set(name("a"), "2", get=True, keepttl=True) == "1"
    assert client.set(name("c"), "x", ex=100) and client.persist(name("c"))
    assert client.expire(name("c"), 10) and client.expire(name("c"), 5, gt=True) is False
    assert client.incr(name("n"), 5) == 5 and client.decr(name("n")) == 4
    assert client.append(name("n"), "2") == 2 and client.getrange(name("n"), 0, 0) == "4"
    assert client.mset({name("x"): 1, name("y"): 2})
    assert client.mget(name("x"), name("none"), name("y")) == ["1", None, "2"]
    assert client.delete(name("x"), name("y"), name("none")) == 2
    assert client.exists(name("n"), name("none")) == 1 and client.type(name("n")) == "string"
    assert client.getdel(name("c")) == "x"
    assert client.client_id() > 0 and client.client_info()["resp"] == str(protocol)
    assert client.info()["redis_version"] and client.command_count() > 50

    # Far more than are under way at a time.
    pipeline = client.pipeline(transaction=False)
    for number in range(1000):
        pipeline.set(name(f"p{number:04}"), number).incr(name("sum"))
    assert pipeline.execute()[-1] == 1000
    assert client.dbsize() >= 1000
    found = set(client.scan_iter(match=prefix + "p*", count=37))
    assert found == {name(f"p{number:04}") for number in range(1000)}
    client.delete(*found)

    with client.pipeline() as pipeline:
        pipeline.incr(name("t")).get(name("t")).set(name("t"), "x", nx=True)
        assert pipeline.execute() == [1, "1", None]

    # Several threads add to one row, each under a watch.
    def add():
        for _ in range(10):
            client.transaction(lambda p: put(p), name("w"))

    def put(pipeline):
        value = int(pipeline.get(name("w")) or 0)
        pipeline.multi()
        pipeline.set(name("w"), value + 1)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.get(name("w")) == "40"
    with client.pipeline() as pipeline:
        pipeline.watch(name("w"))
        client.set(name("w"), "other")
        pipeline.multi()
        pipeline.set(name("w"), "mine")
        try:
            pipeline.execute()
            raise AssertionError("the transaction was done although the row had changed")
        except redis.WatchError:
            pass
    try:
        client.set(name("s"), "word")
        client.incr(name("s"))
        raise AssertionError("a word was added to")
    except redis.ResponseError as error:
        assert str(error) == "value is not an integer or out of range", error
    binary = redis.Redis(port=port, protocol=protocol)
    every = bytes(range(256))
    assert binary.set(every, every) and binary.get(every) == every and binary.delete(every) == 1


def cluster(port):
    client = redis.RedisCluster(host="127.0.0.1", port=port, decode_responses=True)
    for number in range(200):
        assert client.set(f"c{number}", number)
    assert [client.get(f"c{number}") for number in range(200)] == [str(number) for number in range(200)]
    assert client.mset_nonatomic({f"c{number}": "x" for number in range(50)})
    assert client.mget_nonatomic(*[f"c{number}" for number in range(50)]) == ["x"] * 50
    assert client.mset({"{tag}a": 1, "{tag}b": 2}) and client.mget("{tag}a", "{tag}b") == ["1", "2"]
    found, expected = set(client.scan_iter(match="c*", count=11)), {f"c{number}" for number in range(200)}
    assert found == expected, (len(found), found ^ expected)
    pipeline = client.pipeline()
    for number in range(200):
        pipeline.get(f"c{number}")
    assert len(pipeline.execute()) == 200
    assert len(client.get_nodes()) == 2
    replicas = redis.RedisCluster(host="127.0.0.1", port=port, read_from_replicas=True, decode_responses=True)
    assert replicas.get("{tag}a") == "1"
    # What the client does not see: it asks the wrong node, and follows.
    node = client.get_node_from_key("{tag}a")
    other = next(one for one in client.get_nodes() if one.port != node.port)
    try:
        redis.Redis(port=other.port).get("{tag}a")
        raise AssertionError("the other node answered")
    except redis.ResponseError as error:
        assert f":{node.port}" in str(error), error


def survive(port, table):
    """Writes rows until it is told to end, however often that fails, and reads all of them again."""
    client = redis.RedisCluster(
        host="127.0.0.1", port=port, username=table, password="x", decode_responses=True, socket_timeout=15
    )
    done = 0

    def patiently(ask):
        until = time.monotonic() + 60
        while True:
            try:
                return ask()
            except (redis.RedisError, redis.exceptions.RedisClusterException, OSError):
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def write(rows):
        nonlocal done
        for _ in range(rows):
            patiently(lambda: client.set(f"py{done}", done))
            done += 1

    ends = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), ends.set()), daemon=True).start()
    write(100)
    print("written", flush=True)
    while not ends.is_set():
        write(10)
        time.sleep(0.02)
    write(100)
    for number in range(done):
        found = patiently(lambda: client.get(f"py{number}"))
        assert found == str(number), (number, found)


if sys.argv[1] == "survive":
    survive(int(sys.argv[2]), sys.argv[3])
    print("all is well")
    sys.exit()
plain(int(sys.argv[1]), 2)
plain(int(sys.argv[1]), 3)
if len(sys.argv) > 2:
    cluster(int(sys.argv[2]))
print("all is well")
