#!/usr/bin/env node
// A sharded key-value service in one file, over the HTTP worker protocol and nothing but the standard library.
//
//     partage keyspace create kv --hash md5
//     node worker.mjs --coordinator http://127.0.0.1:7400 --id a --port 8001
//
// GET, PUT and DELETE /KEYSPACE/KEY reach a key, in memory. See docs/src/protocols/worker-http.md for the protocol.
//
// Node runs one piece of code at a time, so that no lock is needed: what is decided between two `await` is true until it
// is done, and when an order to unload has been carried out no request is still inside. Copies from other workers are
// awaited beside the heartbeats, which a peer that does not answer does not delay.
import { createHash } from 'node:crypto';
import { createServer } from 'node:http';
import { parseArgs } from 'node:util';

const { values: args } = parseArgs({
  options: {
    coordinator: { type: 'string' },
    id: { type: 'string' },
    host: { type: 'string', default: '127.0.0.1' },
    port: { type: 'string' },
    zone: { type: 'string' },
    'leave-within': { type: 'string', default: '60' },
  },
});
if (!args.coordinator || !args.id || !args.port) {
  console.error('give --coordinator, --id and --port');
  process.exit(2);
}

const BODY_BYTES = 1 << 20; // the longest value
const held = new Map(); // name of a replica -> Replica
const keyspaces = new Map(); // name -> its brief
let cluster = null; // the coordinator's, from the first welcome on
let token = null; // proves that this is the process that registered; kept here and nowhere else
let leaseUntil = 0;
let leaveUntil = null; // null: it stays
let wake = () => {};

const now = () => performance.now(); // monotonic, in ms
const rest = (ms) => new Promise((done) => { wake = done; setTimeout(done, ms); });
const nameOf = ({ keyspace, shard, placement }) => `${keyspace}/${shard}/${placement}`;

class Refused extends Error {
  constructor(status, text) {
    super(`${status} ${text}`);
    this.status = status;
  }
}

class Ended extends Error {} // the coordinator does not know this incarnation any more

async function post(path, body, withinMs = 5000) {
  const answer = await fetch(args.coordinator + path, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(Math.max(1, Math.ceil(withinMs))),
  });
  const text = await answer.text();
  if (!answer.ok) throw new Refused(answer.status, text);
  return text ? JSON.parse(text) : null;
}

// Keys are Buffers: text, or {"hex": "00ff"} where it is not UTF-8.
const keyBytes = (form) => (typeof form === 'string' ? Buffer.from(form) : Buffer.from(form.hex, 'hex'));

// Whether a shard of these bounds holds the key. md5 is the only hash here; see `cannot`.
function holds(bounds, key) {
  if (bounds.type === 'keys') {
    const [begin, end] = [keyBytes(bounds.begin), keyBytes(bounds.end)];
    return Buffer.compare(begin, key) <= 0 && (end.length === 0 || Buffer.compare(key, end) < 0);
  }
  if (bounds.type === 'name') return key.equals(Buffer.from(bounds.name));
  const value = BigInt('0x' + createHash('md5').update(key).digest('hex'));
  if (bounds.type === 'slot') return value % BigInt(bounds.of) === BigInt(bounds.slot);
  const high = value >> 64n;
  return BigInt('0x' + bounds.first) <= high && high <= BigInt('0x' + bounds.last);
}

// One replica, as the orders want it and as it is.
class Replica {
  constructor(order) {
    Object.assign(this, { order, phase: 'loading', epoch: 0 });
    this.data = null; // hex of a key -> value; null until it has loaded for the first time
    this.withdrawn = false; // no order names it any more: it is not served, and its data is kept
    this.permitted = false; // its data may be deleted although no order says so
    this.copying = false;
    Object.assign(this, { reason: null, tries: 0, due: 0 });
  }

  // The state in which it should be; `kept` when no order names it.
  wanted() {
    if (!this.withdrawn || this.order.state === 'unload_final') return this.order.state;
    return this.permitted ? 'unload_final' : 'kept';
  }

  take(order) {
    if (order.epoch < this.order.epoch) return; // older news
    if (this.phase === 'serving' && this.order.role === 'leader' && order.role !== 'leader') {
      this.phase = 'ready'; // stops leading before it does anything else
    }
    // Taken back: from others if they have it, else from what was kept.
    if (this.withdrawn && this.phase === 'kept') this.phase = 'loading';
    Object.assign(this, { withdrawn: false, permitted: false, order, tries: 0, due: 0 });
  }

  // Not what an order names, nor data of a later epoch than the coordinator knows of.
  permit(epoch) {
    if (this.withdrawn && epoch >= Math.max(this.order.epoch, this.epoch)) this.permitted = true;
  }

  failed(reason) {
    this.reason = String(reason);
    this.tries += 1;
    this.due = now() + Math.min(100 * 2 ** this.tries, 10_000);
  }

  became(phase, epoch) {
    Object.assign(this, { phase, epoch, reason: null, tries: 0 });
  }

  // Does what the order says, or begins the copy for it: requests and heartbeats go on meanwhile.
  step() {
    const [order, wanted] = [this.order, this.wanted()];
    if (wanted === 'load' || wanted === 'live') {
      // It leads no more; the leader is granted the shard only when it has heard that.
      if (wanted === 'live' && this.phase === 'ready' && order.role === 'follower') this.epoch = order.epoch;
      const may = order.granted || (wanted === 'live' && this.phase === 'loading');
      const copies = may && (this.phase === 'loading' || (wanted === 'live' && this.phase === 'ready'));
      if (copies && !this.copying && now() >= this.due) {
        const reason = cannot(order);
        if (reason) return this.failed(reason);
        this.copying = true;
        this.copy(order);
      } else if (wanted === 'load' && this.phase === 'ready') {
        this.epoch = order.epoch;
      } else if (this.phase === 'serving' && (order.granted || order.role === 'follower')) {
        this.epoch = order.epoch;
      }
    } else if (wanted === 'unload_final') {
      this.data = null;
      this.became('dropped', order.epoch);
    } else {
      // The data stays: who takes over copies it, or it may be the only copy.
      this.became(wanted === 'kept' ? 'kept' : 'unloaded', order.epoch);
    }
  }

  // Runs twice for a move: in load, and when the order is live and granted. Only then has the former owner ended its last
  // write, so only the second copy has all of them.
  async copy(order) {
    let [data, failure] = [null, null];
    try {
      data = await copyOf(order);
    } catch (error) {
      failure = error;
    }
    this.copying = false;
    const wanted = this.wanted();
    if (wanted !== 'load' && wanted !== 'live') {
      // Withdrawn or unloaded meanwhile.
    } else if (failure) {
      this.failed(failure);
    } else if (this.phase === 'loading') {
      this.data = data ?? this.data ?? new Map();
      this.became('ready', order.epoch);
    } else if (this.phase === 'ready' && this.order === order) {
      this.data = data ?? this.data;
      this.became('serving', order.epoch);
    }
    this.step();
    wake();
  }
}

// Why this worker can neither load nor serve that. What it is told to let go of and to drop, it can.
function cannot(order) {
  const brief = keyspaces.get(order.replica.keyspace);
  if (brief.durable) return 'this worker keeps its data in memory: create the keyspace without --durable';
  if ((brief.sharding.hash ?? 'md5') !== 'md5') {
    return 'this worker knows only the hash md5: create the keyspace with --hash md5';
  }
  if (brief.partition_key.type !== 'whole') {
    return 'this worker shards by whole keys only: create the keyspace without a partition key';
  }
  return null;
}

// The peers to copy from. In the second copy those that let go of the shard have all of its writes; a follower beside them
// may lack some.
function sourcesOf(order) {
  const left = order.peers.filter(({ state }) => state === 'unload');
  if (order.state === 'live' && left.length > 0) return left;
  return order.peers.filter(({ state }) => state === 'live' || state === 'unload');
}

// What other replicas of the shard (or those it was split or merged from) have; null when none has any.
async function copyOf(order) {
  let data = null;
  for (const peer of sourcesOf(order)) {
    const url = `http://${peer.address}/partage/copy/${order.replica.keyspace}/${peer.placement}`;
    const answer = await fetch(url, { signal: AbortSignal.timeout(5000) });
    if (answer.status === 404) continue; // it has not loaded: it has no data to give
    if (!answer.ok) throw new Error(`node ${peer.node} answered ${answer.status}`);
    data ??= new Map();
    for (const [key, value] of Object.entries(await answer.json())) {
      if (holds(order.bounds, Buffer.from(key, 'hex'))) data.set(key, Buffer.from(value, 'hex'));
    }
  }
  return data;
}

// Why orders are not obeyed: they come from another cluster, or from one whose state was set back.
function refuse(orders) {
  if (orders.cluster !== cluster) {
    throw new Error(`the coordinator is of cluster ${orders.cluster}, this worker of ${cluster}: it is not obeyed`);
  }
  for (const brief of orders.keyspaces) {
    const known = keyspaces.get(brief.name) ?? brief;
    const isOlder = brief.first_shard === known.first_shard
      ? brief.generation.sequence < known.generation.sequence
      : brief.first_shard < known.first_shard;
    if (isOlder) throw new Error(`the coordinator has ${brief.name} at an earlier generation than this worker was told`);
  }
}

function take(orders) {
  for (const brief of orders.keyspaces) keyspaces.set(brief.name, brief);
  const named = new Set(orders.changed.map(({ replica }) => nameOf(replica)));
  const removed = new Set(orders.removed.map(nameOf));
  for (const [name, one] of held) {
    if (removed.has(name) || (orders.base === 0 && !named.has(name))) one.withdrawn = true; // base 0: all there is
  }
  for (const { replica, epoch } of orders.permissions ?? []) held.get(nameOf(replica))?.permit(epoch);
  for (const order of orders.changed) {
    const name = nameOf(order.replica);
    if (held.has(name)) held.get(name).take(order);
    else held.set(name, new Replica(order));
  }
}

// Whether something is on its way that will have to be reported.
function work() {
  for (const one of held.values()) one.step();
  return [...held.values()].some((one) => one.copying || one.reason);
}

function reports() {
  return [...held.values()].map((one) => {
    const report = { replica: one.order.replica, phase: one.phase, epoch: one.epoch };
    return one.reason ? { ...report, phase: 'failed', reason: one.reason, attempts: one.tries } : report;
  });
}

// What is deleted, reported so, and not ordered any more.
function forget(told) {
  for (const { replica, phase } of told) {
    if (phase === 'dropped' && held.get(nameOf(replica)).withdrawn) held.delete(nameOf(replica));
  }
}

// This incarnation has ended. Nothing is served any more, and everything is kept.
function withdrawAll() {
  leaseUntil = 0;
  for (const one of held.values()) {
    one.withdrawn = true;
    one.step();
  }
}

// As a new process, or after the coordinator restarted as the one that it is.
async function register(incarnation) {
  const spec = { id: args.id, address: `${args.host}:${args.port}`, check_path: '/partage/worker' };
  if (args.zone) spec.zone = args.zone;
  if (incarnation) Object.assign(spec, { incarnation, token });
  if (cluster) {
    const kept = [...held.values()].filter((one) => one.withdrawn && one.phase === 'kept');
    spec.cluster = cluster;
    spec.stored = kept.map(({ order, epoch }) => (
      { replica: order.replica, bounds: order.bounds, epoch: Math.max(epoch, order.epoch) }));
  }
  const welcome = await post('/v1/worker/register', spec);
  if (cluster && ![welcome.cluster, ...(welcome.continues ?? [])].includes(cluster)) {
    throw new Error(`the coordinator is of cluster ${welcome.cluster}, this worker of ${cluster}: it is not obeyed, and `
      + 'all data is kept. Give it the coordinators of its own cluster');
  }
  cluster = welcome.cluster;
  token = welcome.token ?? token;
  return welcome;
}

// Registers, then beats until it may go, or must.
async function attend() {
  while (leaveUntil === null) {
    let welcome;
    try {
      welcome = await register();
    } catch (error) {
      console.error(`register: ${error.message}`);
      await rest(1000);
      continue;
    }
    const me = { node: args.id, incarnation: welcome.incarnation, token };
    try {
      await beat(me, welcome.lease_ms, welcome.heartbeat_ms);
    } catch (error) {
      if (!(error instanceof Ended)) throw error;
      withdrawAll();
      continue;
    }
    const left = [...held.values()].filter(({ phase }) => phase !== 'dropped' && phase !== 'kept').length;
    withdrawAll(); // from here on nothing is believed
    await post('/v1/worker/leave', me).catch((error) => console.error(`leave: ${error.message}`));
    await rest(500); // clients on their way are still answered
    if (left > 0) console.error(`left with ${left} replicas that were not handed over`);
    return left > 0 ? 1 : 0;
  }
  return 0; // nothing is served
}

// Whether a worker that leaves waits no longer: it had its time, or there is nobody to hand over to.
const mustGo = (isHeard) => leaveUntil !== null && (now() >= leaveUntil || (!isHeard && now() >= leaseUntil));

async function beat(me, leaseMs, restMs) {
  let [sequence, applied, said, isHeard] = [0, 0, null, true];
  while (!mustGo(isHeard)) {
    const works = work();
    const told = reports();
    // Waits for news only when there is none to tell, and none to come from the copies.
    const isIdle = JSON.stringify(told) === said && !works && leaveUntil === null;
    const waitMs = isIdle ? Math.floor(leaseMs / 4) : 0;
    const sent = now();
    const form = {
      ...me, sequence: ++sequence, sent_at_ms: Math.floor(sent), applied, whole: true, reports: told,
      leaving: leaveUntil !== null, lease_expired: sent >= leaseUntil,
    };
    let orders;
    try {
      orders = await post(`/v1/worker/heartbeat?wait_ms=${waitMs}`, form, leaseMs);
      refuse(orders);
    } catch (error) { // it goes on as long as its lease does
      isHeard = false;
      console.error(`heartbeat: ${error.message}`);
      if (error.status === 410) throw new Ended();
      if (error.status === 428 && await registeredAgain(me.incarnation)) applied = 0;
      else await rest(restMs);
      continue;
    }
    isHeard = true;
    if (orders.may_go) return;
    forget(told);
    take(orders);
    leaseUntil = Math.max(leaseUntil, sent + orders.lease.lease_ms); // from when it was sent; 0 ms renews nothing
    applied = orders.version;
    said = JSON.stringify(told);
    if (waitMs === 0) await rest(Math.min(restMs, 50));
  }
}

async function registeredAgain(incarnation) {
  try {
    await register(incarnation);
    return true;
  } catch (error) {
    if (error.status === 410) throw new Ended();
    console.error(`register again: ${error.message}`);
    return false;
  }
}

// An answer, and an error as all of Partage look.
const answered = (status, body = '', headers = {}) => ({ status, body, headers });
const refused = (status, kind, what, help, headers = {}, more = {}) => answered(
  status,
  JSON.stringify({ error: { kind, message: `${what}: ${help}`, help, ...more } }) + '\n',
  { 'content-type': 'application/json', ...headers },
);
const unavailable = (kind, what, help) => refused(503, kind, what, help, { 'retry-after': '1' });

// What a request is answered. There is no `await` in here: what is decided is true until it is done.
function reach(keyspace, key, method, value) {
  const isRead = method === 'GET' || method === 'HEAD';
  const mine = [...held.values()].filter((one) => one.order.replica.keyspace === keyspace && !one.withdrawn
    && !one.reason && holds(one.order.bounds, key));
  const one = mine.find((each) => each.wanted() === 'live' && (isRead || each.order.role === 'leader'));
  const brief = keyspaces.get(keyspace);
  if (!one) {
    const owner = mine.flatMap(({ order }) => order.peers).find(({ state, role }) => state === 'live' && role === 'leader');
    const headers = {};
    if (brief) headers['partage-generation'] = brief.generation.sequence;
    if (owner) Object.assign(headers, { 'partage-owner-node': owner.node, 'partage-owner-address': owner.address });
    const more = owner ? { owner: { node: owner.node, address: owner.address } } : {};
    return refused(421, 'misdirected', 'this node does not serve the key', 'ask for a newer map', headers, more);
  }
  const isLapsed = () => brief.ownership === 'exclusive' && now() >= leaseUntil;
  if (one.phase !== 'serving') return unavailable('soon', 'the shard is being handed over to this node', 'try again');
  if (isLapsed()) {
    return unavailable('lapsed', 'this node does not hear its coordinator, so it may not own the shard', 'try again');
  }
  const name = key.toString('hex');
  if (method === 'PUT') one.data.set(name, value);
  if (method === 'DELETE') one.data.delete(name);
  const found = one.data.get(name);
  // The process may have been paused within, for longer than its lease: then another node may own the shard already.
  if (isLapsed()) {
    return unavailable('lapsed_while_served', 'the lease ran out meanwhile, it may have been done', 'look whether it was');
  }
  const headers = { 'partage-epoch': one.epoch };
  if (isRead && found === undefined) return refused(404, 'not_found', 'there is no such key', 'PUT it', headers);
  return answered(200, found ?? '', { 'content-type': 'application/octet-stream', ...headers });
}

// Waits a moment for orders that the sender goes by and this node has not heard yet.
async function heard(keyspace, theirs) {
  const until = now() + 500;
  const sequence = () => keyspaces.get(keyspace)?.generation.sequence ?? -1;
  while (theirs !== undefined && sequence() < Number(theirs) && now() < until) {
    await new Promise((done) => setTimeout(done, 5));
  }
}

// Lets another worker copy a replica.
function copyFor(keyspace, placement) {
  const mine = [...held.values()].filter(({ order, data, withdrawn }) => order.replica.keyspace === keyspace
    && String(order.replica.placement) === placement && data !== null && !withdrawn);
  if (mine.length === 0) return refused(404, 'not_found', 'this node has no data of that replica', 'ask another one');
  const all = mine.flatMap(({ data }) => [...data].map(([key, value]) => [key, value.toString('hex')]));
  return answered(200, JSON.stringify(Object.fromEntries(all)), { 'content-type': 'application/json' });
}

// The bytes of a part of a path, or null.
function unescaped(word) {
  if (/%(?![0-9a-fA-F]{2})/.test(word)) return null;
  const plain = word.replace(/%([0-9a-fA-F]{2})/g, (_, two) => String.fromCharCode(parseInt(two, 16)));
  return Buffer.from(plain, 'latin1');
}

async function serve(request) {
  const parts = [];
  let bytes = 0;
  for await (const part of request) {
    bytes += part.length;
    if (bytes > BODY_BYTES) return refused(413, 'too_large', 'the value is too long', 'send up to 1 MiB');
    parts.push(part);
  }
  const words = request.url.split('?')[0].slice(1).split('/').map(unescaped);
  if (words.includes(null)) return refused(400, 'malformed', 'the path cannot be read', 'write % as %25');
  const [first, second] = words.map(String);
  if (words.length === 2 && first === 'partage' && second === 'worker') return answered(200, `${args.id}\n`);
  if (words.length === 4 && first === 'partage' && second === 'copy') return copyFor(String(words[2]), String(words[3]));
  if (words.length !== 2) return refused(404, 'not_found', 'there is nothing', 'ask for /KEYSPACE/KEY');
  if (!['GET', 'HEAD', 'PUT', 'DELETE'].includes(request.method)) {
    return refused(405, 'malformed', `there is no ${request.method} here`, 'GET, PUT or DELETE');
  }
  await heard(first, request.headers['partage-generation']);
  return reach(first, words[1], request.method, Buffer.concat(parts));
}

const server = createServer((request, response) => {
  serve(request).then(({ status, body, headers }) => {
    response.writeHead(status, { 'partage-node': args.id, ...headers });
    response.end(request.method === 'HEAD' ? undefined : body);
  }, () => response.destroy()); // the client hung up
});
process.on('SIGTERM', () => {
  leaveUntil ??= now() + 1000 * Number(args['leave-within']);
  wake();
});
// Listen first: the coordinator calls the address as soon as it is announced.
server.listen(Number(args.port), args.host, async () => process.exit(await attend()));
