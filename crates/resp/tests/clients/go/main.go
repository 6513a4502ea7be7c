// go-redis, as people use it, against a table: main PORT PORT_OF_A_CLUSTER, or main survive PORT_OF_A_CLUSTER TABLE
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

var ctx = context.Background()

func check(is bool, what ...any) {
	if !is {
		panic(fmt.Sprintln(what...))
	}
}

func plain(port string, protocol int) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port, Protocol: protocol, ClientName: "go"})
	defer client.Close()
	name := func(key string) string { return fmt.Sprintf("{go%d}%s", protocol, key) }
	check(client.Ping(ctx).Val() == "PONG", "ping")
	check(client.Set(ctx, name("a"), "1", time.Minute).Err() == nil, "set")
	check(client.Get(ctx, name("a")).Val() == "1", "get")
	check(client.TTL(ctx, name("a")).Val() > time.Second, "ttl")
	_, err := client.Get(ctx, name("none")).Result()
	check(errors.Is(err, redis.Nil), err)
	check(!client.SetNX(ctx, name("a"), "2", 0).Val(), "setnx")
	check(client.IncrBy(ctx, name("n"), 41).Val() == 41 && client.Incr(ctx, name("n")).Val() == 42, "incr")
	check(client.MSet(ctx, name("x"), "1", name("y"), "2").Err() == nil, "mset")
	values := client.MGet(ctx, name("x"), name("none"), name("y")).Val()
	check(len(values) == 3 && values[0] == "1" && values[1] == nil && values[2] == "2", values)
	check(client.Del(ctx, name("x"), name("y")).Val() == 2, "del")

	pipeline := client.Pipeline()
	for number := range 500 {
		pipeline.Set(ctx, name("p"+strconv.Itoa(number)), number, 0)
	}
	_, err = pipeline.Exec(ctx)
	check(err == nil, err)
	var found []string
	for scan := client.Scan(ctx, 0, name("p*"), 13).Iterator(); scan.Next(ctx); {
		found = append(found, scan.Val())
	}
	sort.Strings(found)
	check(len(found) == 500 && found[0] == name("p0"), len(found))

	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for done := 0; done < 10; {
				err := client.Watch(ctx, func(tx *redis.Tx) error {
					value, err := tx.Get(ctx, name("w")).Int()
					if err != nil && !errors.Is(err, redis.Nil) {
						return err
					}
					_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
						return pipe.Set(ctx, name("w"), value+1, 0).Err()
					})
					return err
				}, name("w"))
				if err == nil {
					done++
				} else {
					check(errors.Is(err, redis.TxFailedErr), err)
				}
			}
		})
	}
	group.Wait()
	check(client.Get(ctx, name("w")).Val() == "40", "a lost update")
}

func cluster(port string) {
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:" + port}})
	defer client.Close()
	pipeline := client.Pipeline()
	for number := range 300 {
		pipeline.Set(ctx, "g"+strconv.Itoa(number), number, 0)
	}
	_, err := pipeline.Exec(ctx)
	check(err == nil, err)
	for number := range 300 {
		check(client.Get(ctx, "g"+strconv.Itoa(number)).Val() == strconv.Itoa(number), number)
	}
	_, err = client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Incr(ctx, "{go}a")
		return pipe.Incr(ctx, "{go}b").Err()
	})
	check(err == nil, err)
	masters := 0
	var lock sync.Mutex
	err = client.ForEachMaster(ctx, func(ctx context.Context, _ *redis.Client) error {
		lock.Lock()
		defer lock.Unlock()
		masters++
		return nil
	})
	check(err == nil && masters == 2, masters, err)
	replicas := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:" + port}, ReadOnly: true})
	defer replicas.Close()
	check(replicas.Get(ctx, "g7").Val() == "7", "a read of any replica")
}

// survive writes rows until it is told to end, however often that fails, and reads all of them again.
func survive(port, table string) {
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:    []string{"127.0.0.1:" + port},
		Username: table,
		Password: "x",
		// Else it may learn only after a minute that another node leads.
		ClusterStateReloadInterval: time.Second,
	})
	defer client.Close()
	name := func(number int) string { return "go" + strconv.Itoa(number) }
	done := 0
	patiently := func(ask func() error) {
		until := time.Now().Add(time.Minute)
		for err := ask(); err != nil; err = ask() {
			check(time.Now().Before(until), err)
			time.Sleep(50 * time.Millisecond)
		}
	}
	write := func(rows int) {
		for range rows {
			patiently(func() error { return client.Set(ctx, name(done), done, 0).Err() })
			done++
		}
	}
	ends := make(chan struct{})
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		close(ends)
	}()
	write(100)
	fmt.Println("written")
	for ended := false; !ended; {
		write(10)
		select {
		case <-ends:
			ended = true
		case <-time.After(20 * time.Millisecond):
		}
	}
	write(100)
	for number := range done {
		var found string
		patiently(func() (err error) {
			found, err = client.Get(ctx, name(number)).Result()
			return err
		})
		check(found == strconv.Itoa(number), number, found)
	}
}

func main() {
	if os.Args[1] == "survive" {
		survive(os.Args[2], os.Args[3])
		fmt.Println("all is well")
		return
	}
	plain(os.Args[1], 2)
	plain(os.Args[1], 3)
	cluster(os.Args[2])
	fmt.Println("all is well")
}
