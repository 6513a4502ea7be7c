package main

import (
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// bodyBytes is the longest value.
const bodyBytes = 1 << 20

// serve answers everything that comes to the address.
func serve(w http.ResponseWriter, r *http.Request) {
	words := strings.SplitN(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/", 4)
	for at, word := range words {
		word, err := url.PathUnescape(word)
		if err != nil {
			refused(w, http.StatusBadRequest, "malformed", "the path cannot be read", "write % as %25")
			return
		}
		words[at] = word
	}
	switch {
	case len(words) == 2 && words[0] == "partage" && words[1] == "worker": // the coordinator's check
		io.WriteString(w, *id+"\n")
	case len(words) == 4 && words[0] == "partage" && words[1] == "copy":
		give(w, words[2], words[3])
	case len(words) == 2:
		key(w, r, words[0], words[1])
	default:
		refused(w, http.StatusNotFound, "not_found", "there is nothing at "+r.URL.Path, "ask for /KEYSPACE/KEY")
	}
}

// give lets another worker copy a replica.
func give(w http.ResponseWriter, keyspace, placement string) {
	number, err := strconv.ParseUint(placement, 10, 64)
	data, found := map[string]string{}, false
	lock.Lock()
	for name, one := range held {
		if err == nil && name.Keyspace == keyspace && name.Placement == number && one.data != nil && !one.withdrawn {
			found = true
			for key, value := range one.data {
				data[hex.EncodeToString([]byte(key))] = hex.EncodeToString(value)
			}
		}
	}
	lock.Unlock()
	if !found {
		refused(w, http.StatusNotFound, "not_found", "this node has no data of that replica", "ask another one")
		return
	}
	w.Header().Set("content-type", "application/json")
	_ = json.NewEncoder(w).Encode(data)
}

// key answers a request for a key.
func key(w http.ResponseWriter, r *http.Request, keyspace, key string) {
	value, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyBytes))
	if err != nil {
		refused(w, http.StatusRequestEntityTooLarge, "too_large", "the value was not read", "send up to 1 MiB, and all of it")
		return
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPut, http.MethodDelete:
	default:
		refused(w, http.StatusMethodNotAllowed, "malformed", "there is no "+r.Method+" here", "GET, PUT or DELETE")
		return
	}
	await(keyspace, r.Header.Get("partage-generation"))
	w.Header().Set("partage-node", *id)
	// Sent when the lock is free again: a client that reads slowly delays no one else.
	reach(keyspace, key, r.Method, value)(w)
}

// reach does what is asked, and gives what to answer. What is decided under the lock is true until it is done: an order to
// unload is reported as carried out only when no request is inside.
func reach(keyspace, key, method string, value []byte) func(http.ResponseWriter) {
	lock.Lock()
	defer lock.Unlock()
	isRead := method == http.MethodGet || method == http.MethodHead
	one, owner := find(keyspace, key, isRead)
	if one == nil {
		return misdirected(keyspaces[keyspace].Generation.Sequence, owner)
	}
	isLapsed := func() bool {
		return keyspaces[keyspace].Ownership == "exclusive" && !time.Now().Before(leaseUntil)
	}
	switch {
	case one.phase != "serving":
		return unavailable("soon", "the shard is being handed over to this node", "try again")
	case isLapsed():
		return unavailable("lapsed", "this node does not hear its coordinator, so it may not own the shard", "try again")
	}
	switch method {
	case http.MethodPut:
		one.data[key] = value
	case http.MethodDelete:
		delete(one.data, key)
	}
	found, ok := one.data[key]
	// The process may have been paused within, for longer than its lease: then another node may own the shard already.
	if isLapsed() {
		return unavailable("lapsed_while_served", "the lease ran out meanwhile, it may have been done", "look whether it was")
	}
	epoch := strconv.FormatUint(one.epoch, 10)
	return func(w http.ResponseWriter) {
		w.Header().Set("partage-epoch", epoch)
		if isRead && !ok {
			refused(w, http.StatusNotFound, "not_found", "there is no such key", "PUT it")
			return
		}
		w.Header().Set("content-type", "application/octet-stream")
		_, _ = w.Write(found)
	}
}

// await waits a moment for orders that the sender goes by and this node has not heard yet.
func await(keyspace, theirs string) {
	sequence, err := strconv.ParseUint(theirs, 10, 64)
	for until := time.Now().Add(500 * time.Millisecond); err == nil && time.Now().Before(until); {
		lock.Lock()
		brief, ok := keyspaces[keyspace]
		lock.Unlock()
		if ok && brief.Generation.Sequence >= sequence {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// find gives the replica that answers for a key here, else the owner, if an order names it.
func find(keyspace, key string, isRead bool) (here *Replica, owner *Peer) {
	for name, one := range held {
		if name.Keyspace != keyspace || one.withdrawn || one.reason != "" || !one.order.Bounds.holds(key) {
			continue
		}
		if one.wanted() == "live" && (isRead || one.order.Role == "leader") {
			here = one
		}
		for _, peer := range one.order.Peers {
			if peer.State == "live" && peer.Role == "leader" {
				peer := peer
				owner = &peer
			}
		}
	}
	return here, owner
}

func misdirected(sequence uint64, owner *Peer) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		if sequence > 0 {
			w.Header().Set("partage-generation", strconv.FormatUint(sequence, 10))
		}
		detail := map[string]any{
			"kind": "misdirected", "message": "this node does not serve the key: ask for a newer map", "help": "ask for a newer map",
		}
		if owner != nil {
			w.Header().Set("partage-owner-node", owner.Node)
			w.Header().Set("partage-owner-address", owner.Address)
			detail["owner"] = map[string]string{"node": owner.Node, "address": owner.Address}
		}
		failed(w, http.StatusMisdirectedRequest, detail)
	}
}

func unavailable(kind, what, help string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.Header().Set("retry-after", "1")
		refused(w, http.StatusServiceUnavailable, kind, what, help)
	}
}

func refused(w http.ResponseWriter, status int, kind, what, help string) {
	failed(w, status, map[string]any{"kind": kind, "message": what + ": " + help, "help": help})
}

// failed writes an error as all of Partage do.
func failed(w http.ResponseWriter, status int, detail map[string]any) {
	w.Header().Set("content-type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": detail})
}
