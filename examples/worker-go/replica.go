package main

import (
	"crypto/md5"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/bits"
	"net/http"
	"sort"
	"strconv"
	"time"
)

// Key names a replica.
type Key struct {
	Keyspace  string `json:"keyspace"`
	Shard     uint64 `json:"shard"`
	Placement uint64 `json:"placement"`
}

// Peer is another replica of the shard, or of one that it was split or merged from.
type Peer struct {
	Placement uint64 `json:"placement"`
	Node      string `json:"node"`
	Address   string `json:"address"`
	Role      string `json:"role"`
	State     string `json:"state"`
}

// Order says what a replica should be.
type Order struct {
	Replica Key    `json:"replica"`
	Bounds  Bounds `json:"bounds"`
	Role    string `json:"role"`
	State   string `json:"state"`
	Epoch   uint64 `json:"epoch"`
	Granted bool   `json:"granted"`
	Peers   []Peer `json:"peers"`
}

// Permission allows to delete what no order names.
type Permission struct {
	Replica Key    `json:"replica"`
	Epoch   uint64 `json:"epoch"`
}

// Report says how a replica is.
type Report struct {
	Replica  Key    `json:"replica"`
	Phase    string `json:"phase"`
	Epoch    uint64 `json:"epoch"`
	Reason   string `json:"reason,omitempty"`
	Attempts int    `json:"attempts,omitempty"`
}

// Bytes of a key: text, or {"hex": "00ff"} where it is not UTF-8.
type Bytes string

// UnmarshalJSON reads either form.
func (b *Bytes) UnmarshalJSON(text []byte) error {
	var form struct{ Hex string }
	if json.Unmarshal(text, (*string)(b)) == nil {
		return nil
	}
	if err := json.Unmarshal(text, &form); err != nil {
		return err
	}
	decoded, err := hex.DecodeString(form.Hex)
	*b = Bytes(decoded)
	return err
}

// Bounds say which keys a shard holds; raw is what is told to the coordinator again.
type Bounds struct {
	Type        string
	Begin, End  Bytes
	First, Last string
	Slot, Of    uint64
	Name        string
	raw         json.RawMessage
}

// UnmarshalJSON keeps the text, too.
func (b *Bounds) UnmarshalJSON(text []byte) error {
	type fields Bounds
	err := json.Unmarshal(text, (*fields)(b))
	b.raw = append(json.RawMessage{}, text...)
	return err
}

// MarshalJSON gives it back as it came.
func (b Bounds) MarshalJSON() ([]byte, error) { return b.raw, nil }

// holds says whether a shard of these bounds has the key. md5 is the only hash here; see cannot.
func (b Bounds) holds(key string) bool {
	switch b.Type {
	case "keys":
		return string(b.Begin) <= key && (b.End == "" || key < string(b.End))
	case "name":
		return key == b.Name
	}
	sum := md5.Sum([]byte(key))
	high, low := binary.BigEndian.Uint64(sum[:8]), binary.BigEndian.Uint64(sum[8:])
	if b.Type == "slot" {
		return bits.Rem64(high, low, b.Of) == b.Slot
	}
	first, err := strconv.ParseUint(b.First, 16, 64)
	last, err2 := strconv.ParseUint(b.Last, 16, 64)
	return err == nil && err2 == nil && first <= high && high <= last
}

// Replica as the orders want it and as it is. Read and changed under the lock.
type Replica struct {
	order     Order
	phase     string
	epoch     uint64            // of the last order that was carried out
	data      map[string][]byte // nil until it has loaded for the first time
	withdrawn bool              // no order names it any more: it is not served, and its data is kept
	permitted bool              // its data may be deleted although no order says so
	copying   bool
	reason    string
	tries     int
	due       time.Time
}

// wanted is the state in which it should be; kept when no order names it.
func (r *Replica) wanted() string {
	switch {
	case !r.withdrawn || r.order.State == "unload_final":
		return r.order.State
	case r.permitted:
		return "unload_final"
	}
	return "kept"
}

func (r *Replica) take(order Order) {
	if order.Epoch < r.order.Epoch {
		return // older news
	}
	if r.phase == "serving" && r.order.Role == "leader" && order.Role != "leader" {
		r.phase = "ready" // stops leading before it does anything else
	}
	if r.withdrawn && r.phase == "kept" {
		r.phase = "loading" // taken back: from others if they have it, else from what was kept
	}
	r.withdrawn, r.permitted = false, false
	r.order, r.tries, r.due = order, 0, time.Time{}
}

func (r *Replica) failed(reason string) {
	r.reason, r.tries = reason, r.tries+1
	rest := 10 * time.Second
	if r.tries < 7 {
		rest = 100 * time.Millisecond << r.tries
	}
	r.due = time.Now().Add(rest)
}

func (r *Replica) became(phase string, epoch uint64) {
	r.phase, r.epoch, r.reason, r.tries = phase, epoch, "", 0
}

// step does what the order says, or begins the copy for it: requests and heartbeats go on meanwhile.
func (r *Replica) step() {
	wanted := r.wanted()
	switch wanted {
	case "load", "live":
		if wanted == "live" && r.phase == "ready" && r.order.Role == "follower" {
			r.epoch = r.order.Epoch // it leads no more; the leader is granted the shard only when it has heard that
		}
		may := r.order.Granted || wanted == "live" && r.phase == "loading"
		copies := may && (r.phase == "loading" || wanted == "live" && r.phase == "ready")
		switch {
		case copies && !r.copying && !time.Now().Before(r.due):
			if reason := cannot(r.order); reason != "" {
				r.failed(reason)
				return
			}
			r.copying = true
			go r.copy(r.order)
		case wanted == "load" && r.phase == "ready":
			r.epoch = r.order.Epoch
		case r.phase == "serving" && (r.order.Granted || r.order.Role == "follower"):
			r.epoch = r.order.Epoch
		}
	case "unload_final":
		r.data = nil
		r.became("dropped", r.order.Epoch)
	case "kept": // the data stays: it may be the only copy
		r.became("kept", r.order.Epoch)
	default: // unload; the data stays: who takes over copies it
		r.became("unloaded", r.order.Epoch)
	}
}

// copy runs twice for a move: in load, and when the order is live and granted. Only then has the former owner ended its
// last write, so only the second copy has all of them.
func (r *Replica) copy(order Order) {
	data, err := fetch(order)
	lock.Lock()
	defer wake()
	defer lock.Unlock()
	r.copying = false
	switch wanted := r.wanted(); {
	case wanted != "load" && wanted != "live": // withdrawn or unloaded meanwhile
	case err != nil:
		r.failed(err.Error())
	case r.phase == "loading":
		if data != nil {
			r.data = data
		} else if r.data == nil {
			r.data = map[string][]byte{}
		}
		r.became("ready", order.Epoch)
	case r.phase == "ready" && r.order.State == "live" && r.order.Epoch == order.Epoch && order.State == "live" && order.Granted:
		if data != nil {
			r.data = data
		}
		r.became("serving", order.Epoch)
	}
	r.step()
}

var copies = make(chan struct{}, 16) // so many peers are asked at once

// sources gives the peers to copy from. In the second copy those that let go of the shard have all of its writes; a follower
// beside them may lack some.
func (order Order) sources() []Peer {
	var left, all []Peer
	for _, peer := range order.Peers {
		switch peer.State {
		case "unload":
			left, all = append(left, peer), append(all, peer)
		case "live":
			all = append(all, peer)
		}
	}
	if order.State == "live" && len(left) > 0 {
		return left
	}
	return all
}

// fetch gives what other replicas have; nil when none has any.
func fetch(order Order) (map[string][]byte, error) {
	copies <- struct{}{}
	defer func() { <-copies }()
	var data map[string][]byte
	client := http.Client{Timeout: 5 * time.Second}
	for _, peer := range order.sources() {
		response, err := client.Get(fmt.Sprintf("http://%s/partage/copy/%s/%d", peer.Address, order.Replica.Keyspace, peer.Placement))
		if err != nil {
			return nil, err
		}
		copied := map[string]string{}
		if response.StatusCode == http.StatusOK {
			err = json.NewDecoder(response.Body).Decode(&copied)
		}
		response.Body.Close()
		switch {
		case response.StatusCode == http.StatusNotFound:
			continue // it has not loaded: it has no data to give
		case response.StatusCode != http.StatusOK:
			return nil, fmt.Errorf("node %s answered %s", peer.Node, response.Status)
		case err != nil:
			return nil, err
		}
		if data == nil {
			data = map[string][]byte{}
		}
		for key, value := range copied {
			key, err := hex.DecodeString(key)
			value, err2 := hex.DecodeString(value)
			if err != nil || err2 != nil {
				return nil, fmt.Errorf("node %s sent what is not hexadecimal", peer.Node)
			}
			if order.Bounds.holds(string(key)) {
				data[string(key)] = value
			}
		}
	}
	return data, nil
}

// cannot says why this worker can neither load nor serve that. What it is told to let go of and to drop, it can.
func cannot(order Order) string {
	brief := keyspaces[order.Replica.Keyspace]
	switch {
	case brief.Durable:
		return "this worker keeps its data in memory: create the keyspace without --durable"
	case brief.Sharding.Hash != "" && brief.Sharding.Hash != "md5":
		return "this worker knows only the hash md5: create the keyspace with --hash md5"
	case brief.PartitionKey.Type != "whole":
		return "this worker shards by whole keys only: create the keyspace without a partition key"
	}
	return ""
}

// refuse says why orders are not obeyed: they come from another cluster, or from one whose state was set back.
func refuse(orders Orders) error {
	if orders.Cluster != cluster {
		return fmt.Errorf("the coordinator is of cluster %s, this worker of %s: it is not obeyed, and all data is kept", orders.Cluster, cluster)
	}
	lock.Lock()
	defer lock.Unlock()
	for _, brief := range orders.Keyspaces {
		known, ok := keyspaces[brief.Name]
		isOlder := brief.FirstShard < known.FirstShard ||
			brief.FirstShard == known.FirstShard && brief.Generation.Sequence < known.Generation.Sequence
		if ok && isOlder {
			return fmt.Errorf("the coordinator has %s at an earlier generation than this worker was told: it is not obeyed, and all data is kept", brief.Name)
		}
	}
	return nil
}

func take(orders Orders) {
	lock.Lock()
	defer lock.Unlock()
	for _, brief := range orders.Keyspaces {
		keyspaces[brief.Name] = brief
	}
	named, removed := map[Key]bool{}, map[Key]bool{}
	for _, order := range orders.Changed {
		named[order.Replica] = true
	}
	for _, key := range orders.Removed {
		removed[key] = true
	}
	for key, one := range held {
		if removed[key] || orders.Base == 0 && !named[key] { // base 0: the orders are the whole
			one.withdrawn = true
		}
	}
	for _, permission := range orders.Permissions {
		// Not what an order names, nor data of a later epoch than the coordinator knows of.
		one := held[permission.Replica]
		if one != nil && one.withdrawn && permission.Epoch >= one.order.Epoch && permission.Epoch >= one.epoch {
			one.permitted = true
		}
	}
	for _, order := range orders.Changed {
		if one := held[order.Replica]; one != nil {
			one.take(order)
		} else {
			held[order.Replica] = &Replica{order: order, phase: "loading"}
		}
	}
}

// work says whether something is on its way that will have to be reported.
func work() (works bool) {
	lock.Lock()
	defer lock.Unlock()
	for _, one := range held {
		one.step()
		works = works || one.copying || one.reason != ""
	}
	return works
}

// reports say how all replicas are, in the same order each time.
func reports() []Report {
	lock.Lock()
	defer lock.Unlock()
	told := []Report{}
	for key, one := range held {
		report := Report{Replica: key, Phase: one.phase, Epoch: one.epoch}
		if one.reason != "" {
			report.Phase, report.Reason, report.Attempts = "failed", one.reason, one.tries
		}
		told = append(told, report)
	}
	sort.Slice(told, func(a, b int) bool { return told[a].Replica.Placement < told[b].Replica.Placement })
	return told
}

// forget what is deleted, reported so, and not ordered any more.
func forget(told []Report) {
	lock.Lock()
	defer lock.Unlock()
	for _, report := range told {
		if report.Phase == "dropped" && held[report.Replica].withdrawn {
			delete(held, report.Replica)
		}
	}
}

// stored is what is kept, for a registration.
func stored() []map[string]any {
	lock.Lock()
	defer lock.Unlock()
	kept := []map[string]any{}
	for key, one := range held {
		if one.withdrawn && one.phase == "kept" {
			epoch := one.epoch
			if one.order.Epoch > epoch {
				epoch = one.order.Epoch
			}
			kept = append(kept, map[string]any{"replica": key, "bounds": one.order.Bounds, "epoch": epoch})
		}
	}
	return kept
}

// withdrawAll is called under the lock: this incarnation has ended. Nothing is served any more, and everything is kept.
func withdrawAll() {
	leaseUntil = time.Time{}
	for _, one := range held {
		one.withdrawn = true
		one.step()
	}
}

// wake has the next heartbeat not wait.
func wake() {
	select {
	case copied <- struct{}{}:
	default:
	}
}
