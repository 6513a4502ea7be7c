"""Plans an instance of `bench-placement generate` with Meta's Rebalancer and prints a line of figures.

usage: peer.py FILE [SECONDS [FORMULA]]

The problem put to it: no container above (1 + tolerance) x mean in any metric, replicas of a shard in
distinct racks, drained and lost nodes empty and accepting nothing. Its local search stops when no step helps
or the time is up.
"""

import resource
import sys
import time
from collections import defaultdict

from rebalancer import ProblemSolver


# How excess is counted, as numbers of the peer's own enumeration: by the sum over nodes (0), by the fullest (2).
FORMULA = int(sys.argv[3]) if len(sys.argv) > 3 else 0


def read(path):
    words = iter(open(path).read().split())
    assert next(words) == "metrics"
    metrics, tolerance = int(next(words)), float(next(words))
    assert next(words) == "nodes"
    nodes = [(next(words), next(words)) for _ in range(int(next(words)))]
    assert next(words) == "shards"
    count, replicas = int(next(words)), int(next(words))
    shards = []
    for _ in range(count):
        on = [int(next(words)) for _ in range(replicas)]
        shards.append((on, [float(next(words)) for _ in range(metrics)]))
    return metrics, tolerance, nodes, shards


def local_search(seconds, objects):
    """Single moves, then swaps; on large instances the fast single moves only, or it hardly begins."""
    kinds = ["singleFastMoveTypeSpec"] if objects > 20_000 else ["singleMoveTypeSpec", "swapMoveTypeSpec"]
    return {"localSearchSolverSpec": {"solveTime": seconds, "moveTypeList": [{kind: {}} for kind in kinds]}}


def main():
    path, seconds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 300
    metrics, tolerance, nodes, shards = read(path)
    name = lambda node: f"n{node}"
    objects = [(shard, r) for shard, (on, _) in enumerate(shards) for r in range(len(on))]
    label = lambda o: f"{o[0]}.{o[1]}"
    where = {label(o): shards[o[0]][0][o[1]] for o in objects}
    assignment = {name(n): [] for n in range(len(nodes))}
    for o, n in where.items():
        assignment[name(n)].append(o)
    leaving = [name(n) for n, (_, standing) in enumerate(nodes) if standing in ("drains", "gone")]
    staying = [name(n) for n, (_, standing) in enumerate(nodes) if standing not in ("drains", "gone")]

    solver = ProblemSolver(service_name="bench", service_scope="placement")
    solver.set_object_name("replica").set_container_name("node").set_assignment(assignment)
    solver.add_scope("rack", {name(n): f"r{rack}" for n, (rack, _) in enumerate(nodes)})
    groups = defaultdict(list)
    for o in objects:
        groups[f"s{o[0]}"].append(label(o))
    solver.add_partition("shard", dict(groups))
    total = [0.0] * metrics
    for m in range(metrics):
        loads = {label(o): shards[o[0]][1][m] for o in objects}
        total[m] = sum(loads.values())
        solver.add_object_dimension(f"m{m}", loads)
    solver.add_constraint({"groupCountSpec": {
        "name": "racks", "scope": "rack", "partitionName": "shard",
        "limit": {"type": 1, "globalLimit": 1.0}}})
    if leaving:
        solver.add_constraint({"nonAcceptingSpec": {"name": "leaving", "scope": "node", "items": leaving}})
        solver.add_goal({"toFreeSpec": {"name": "free", "containers": leaving}}, 10.0, 0)
    # "Drained" and "gone" nodes hold nothing in the end, so the mean is over those that stay.
    for m in range(metrics):
        solver.add_goal({"balanceSpec": {
            "name": f"even{m}", "scope": "node", "dimension": f"m{m}", "upperBound": (1 + tolerance) * len(nodes) / len(staying),
            "formula": FORMULA}}, 1.0, 0)
    solver.add_solver(local_search(seconds, len(objects)))

    before = resource.getrusage(resource.RUSAGE_SELF)
    wall = time.monotonic()
    solution = solver.solve()
    wall = time.monotonic() - wall
    after = resource.getrusage(resource.RUSAGE_SELF)
    cores = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    final = solution["assignment"]
    moves = sum(1 for o, n in where.items() if final[o] != name(n))
    over = []
    for m in range(metrics):
        load = defaultdict(float)
        for o in objects:
            load[final[label(o)]] += shards[o[0]][1][m]
        over.append(max(load[n] for n in staying) / (total[m] / len(staying)))
    rack_of = {name(n): rack for n, (rack, _) in enumerate(nodes)}
    crowded = sum(len(g) - len({rack_of[final[o]] for o in g}) for g in groups.values())
    gone = set(leaving)
    left = sum(1 for n in final.values() if n in gone)
    print(f"core_s={cores:.4f} wall_s={wall:.4f} moves={moves} moved={100 * moves / len(objects):.2f}% "
          f"after={'/'.join(f'{x:.4f}' for x in over)} violations={crowded} left={left} "
          f"peak_mib={after.ru_maxrss / 1024:.0f}")


main()
