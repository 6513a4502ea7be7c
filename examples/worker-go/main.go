// A sharded key-value service over the HTTP worker protocol, with nothing but the standard library.
//
//	partage keyspace create kv --hash md5
//	go build -o worker . && ./worker --coordinator http://127.0.0.1:7400 --id a --port 8001
//
// GET, PUT and DELETE /KEYSPACE/KEY reach a key, in memory. See docs/src/protocols/worker-http.md for the protocol.
//
// One goroutine beats and decides (this file), a few copy data from other workers, all others answer requests
// (serve.go), and one lock stands between them. What becomes of one replica is in replica.go. So when an order to unload
// has been carried out, no request is still inside; and a peer that does not answer delays the shards that are copied
// from it, and no heartbeat.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

var (
	coordinator = flag.String("coordinator", "", "its URL")
	id          = flag.String("id", "", "the name of this node, kept across restarts")
	host        = flag.String("host", "127.0.0.1", "where requests are taken, and announced")
	port        = flag.String("port", "", "where requests are taken, and announced")
	zone        = flag.String("zone", "", "what fails together with this node")
	leaveWithin = flag.Duration("leave-within", time.Minute, "in which to hand over after SIGTERM")
)

// Everything below the lock; deadlines are by the monotonic clock, which Go keeps in every time.Now().
var (
	lock       sync.Mutex
	held       = map[Key]*Replica{}
	keyspaces  = map[string]Brief{}
	leaseUntil time.Time
	leaveUntil time.Time // zero: it stays
)

// Of the goroutine that beats alone. The token proves that this is the process that registered.
var (
	cluster string
	token   string
	copied  = make(chan struct{}, 1) // a copy has ended, or SIGTERM came: there is something to tell
)

// Brief is what orders say of a keyspace.
type Brief struct {
	Name         string                      `json:"name"`
	Sharding     struct{ Type, Hash string } `json:"sharding"`
	PartitionKey struct{ Type string }       `json:"partition_key"`
	Ownership    string                      `json:"ownership"`
	Durable      bool                        `json:"durable"`
	FirstShard   uint64                      `json:"first_shard"`
	Generation   struct{ Sequence uint64 }   `json:"generation"`
}

// Orders answer a heartbeat.
type Orders struct {
	Version     uint64       `json:"version"`
	Base        uint64       `json:"base"`
	Cluster     string       `json:"cluster"`
	Keyspaces   []Brief      `json:"keyspaces"`
	Changed     []Order      `json:"changed"`
	Removed     []Key        `json:"removed"`
	Permissions []Permission `json:"permissions"`
	MayGo       bool         `json:"may_go"`
	Lease       struct {
		LeaseMs int64 `json:"lease_ms"`
	} `json:"lease"`
}

// Welcome answers a registration.
type Welcome struct {
	Incarnation uint64   `json:"incarnation"`
	HeartbeatMs int64    `json:"heartbeat_ms"`
	LeaseMs     int64    `json:"lease_ms"`
	Cluster     string   `json:"cluster"`
	Continues   []string `json:"continues"`
	Token       string   `json:"token"`
}

// Refused is an answer that is not a success: {"error": {"kind": …, "message": …, "help": …}}.
type Refused struct {
	status int
	Detail struct{ Kind, Message string } `json:"error"`
}

func (r *Refused) Error() string {
	return fmt.Sprintf("%d %s: %s", r.status, r.Detail.Kind, r.Detail.Message)
}

// errEnded says that the coordinator does not know this incarnation any more.
var errEnded = errors.New("this incarnation has ended")

func say(format string, words ...any) { fmt.Fprintf(os.Stderr, format+"\n", words...) }

func post(path string, body any, answer any, within time.Duration) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	client := http.Client{Timeout: within}
	response, err := client.Post(*coordinator+path, "application/json", bytes.NewReader(text))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err = io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode >= 300 {
		refused := &Refused{status: response.StatusCode}
		_ = json.Unmarshal(text, refused) // the status is enough
		return refused
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(text, answer)
}

func status(err error) int {
	var refused *Refused
	if errors.As(err, &refused) {
		return refused.status
	}
	return 0
}

// register as a new process (incarnation 0), or after the coordinator restarted as the one that it is.
func register(incarnation uint64) (welcome Welcome, err error) {
	spec := map[string]any{"id": *id, "address": net.JoinHostPort(*host, *port), "check_path": "/partage/worker"}
	if *zone != "" {
		spec["zone"] = *zone
	}
	if incarnation != 0 {
		spec["incarnation"], spec["token"] = incarnation, token
	}
	if cluster != "" {
		spec["cluster"], spec["stored"] = cluster, stored()
	}
	if err = post("/v1/worker/register", spec, &welcome, 5*time.Second); err != nil {
		return welcome, err
	}
	known := cluster == "" || cluster == welcome.Cluster
	for _, former := range welcome.Continues {
		known = known || former == cluster
	}
	if !known {
		return welcome, fmt.Errorf("the coordinator is of cluster %s, this worker of %s: it is not obeyed, and all "+
			"data is kept. Give it the coordinators of its own cluster", welcome.Cluster, cluster)
	}
	cluster = welcome.Cluster
	if welcome.Token != "" {
		token = welcome.Token
	}
	return welcome, nil
}

// attend registers and beats until this worker may go, or must.
func attend() {
	for !isLeaving() {
		welcome, err := register(0)
		if err != nil {
			say("register: %v", err)
			select {
			case <-copied:
			case <-time.After(time.Second):
			}
			continue
		}
		if err := beat(welcome); errors.Is(err, errEnded) {
			lock.Lock()
			withdrawAll() // nothing is served, everything is kept
			lock.Unlock()
			continue
		}
		lock.Lock()
		left := 0
		for _, one := range held {
			if one.phase != "dropped" && one.phase != "kept" {
				left++
			}
		}
		withdrawAll() // from here on nothing is believed
		lock.Unlock()
		me := map[string]any{"node": *id, "incarnation": welcome.Incarnation, "token": token}
		if err := post("/v1/worker/leave", me, nil, 5*time.Second); err != nil {
			say("leave: %v", err)
		}
		time.Sleep(500 * time.Millisecond) // clients on their way are still answered
		if left > 0 {
			say("left with %d replicas that were not handed over", left)
			os.Exit(1)
		}
		return
	}
}

func isLeaving() bool {
	lock.Lock()
	defer lock.Unlock()
	return !leaveUntil.IsZero()
}

// mustGo says whether a worker that leaves waits no longer: it had its time, or there is nobody to hand over to.
func mustGo(isHeard bool) bool {
	lock.Lock()
	defer lock.Unlock()
	now := time.Now()
	return !leaveUntil.IsZero() && (now.After(leaveUntil) || !isHeard && now.After(leaseUntil))
}

// beat returns nil when the worker may go or must, and errEnded when it has to register anew.
func beat(welcome Welcome) error {
	rest, lease := time.Duration(welcome.HeartbeatMs)*time.Millisecond, time.Duration(welcome.LeaseMs)*time.Millisecond
	began, isHeard := time.Now(), true
	var sequence, applied uint64
	var said string
	for !mustGo(isHeard) {
		works := work()
		told := reports()
		text, _ := json.Marshal(told)
		// Waits for news only when there is none to tell, and none to come from the copies.
		wait := int64(0)
		if string(text) == said && !works && !isLeaving() {
			wait = welcome.LeaseMs / 4
		}
		sequence++
		sent := time.Now()
		form := map[string]any{
			"node": *id, "incarnation": welcome.Incarnation, "token": token,
			"sequence": sequence, "sent_at_ms": sent.Sub(began).Milliseconds(), "applied": applied,
			"whole": true, "reports": told, "leaving": isLeaving(), "lease_expired": !sent.Before(leaseUntil),
		}
		var orders Orders
		err := post(fmt.Sprintf("/v1/worker/heartbeat?wait_ms=%d", wait), form, &orders, lease)
		if err == nil {
			err = refuse(orders)
		}
		isHeard = err == nil
		if err != nil { // it goes on as long as its lease does
			say("heartbeat: %v", err)
			if status(err) == http.StatusPreconditionRequired {
				if _, err = register(welcome.Incarnation); err == nil {
					applied = 0
					continue
				}
				say("register again: %v", err)
			}
			if status(err) == http.StatusGone {
				return errEnded
			}
			time.Sleep(rest)
			continue
		}
		if orders.MayGo {
			return nil
		}
		forget(told)
		take(orders)
		lock.Lock()
		// From when it was sent; a lease of 0 ms renews nothing.
		if until := sent.Add(time.Duration(orders.Lease.LeaseMs) * time.Millisecond); until.After(leaseUntil) {
			leaseUntil = until
		}
		lock.Unlock()
		applied, said = orders.Version, string(text)
		if wait == 0 {
			select {
			case <-copied:
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	return nil
}

func main() {
	flag.Parse()
	if *coordinator == "" || *id == "" || *port == "" {
		say("give --coordinator, --id and --port; see --help")
		os.Exit(2)
	}
	// Listen first: the coordinator calls the address as soon as it is announced.
	listener, err := net.Listen("tcp", net.JoinHostPort(*host, *port))
	if err != nil {
		say("%v", err)
		os.Exit(1)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	go func() {
		<-signals
		lock.Lock()
		leaveUntil = time.Now().Add(*leaveWithin)
		lock.Unlock()
		wake()
	}()
	go func() {
		say("%v", http.Serve(listener, http.HandlerFunc(serve)))
		os.Exit(1)
	}()
	attend()
}
