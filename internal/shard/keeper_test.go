package shard_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/bustest"
	"github.com/podplane/podplane/internal/shard"
	"github.com/podplane/podplane/internal/testkit"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

const (
	ttl  = 900 * time.Millisecond
	node = "n1"
)

// board is where all replicas of a test write down what they work on: two on one shard is what must never be.
type board struct {
	mu     sync.Mutex
	owner  map[int]string
	faults []string
}

// peer is one replica.
type peer struct {
	name   string
	b      *board
	k      *shard.Keeper
	writer *bus.Writer[*podplanev1.StatusRecord]
	cancel context.CancelFunc
	done   chan struct{}
}

func (p *peer) Gain(_ context.Context, shards []int) error {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	for _, n := range shards {
		if o := p.b.owner[n]; o != "" {
			p.b.faults = append(p.b.faults, fmt.Sprintf("%s begins on shard %d of %s", p.name, n, o))
		}
		p.b.owner[n] = p.name
	}
	return nil
}

func (p *peer) Lose(_ context.Context, shards []int) {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	for _, n := range shards {
		if p.b.owner[n] == p.name {
			delete(p.b.owner, n)
		}
	}
}

func (b *board) counts() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := map[string]int{}
	for _, o := range b.owner {
		c[o]++
	}
	return c
}

func (b *board) check(t *testing.T) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range b.faults {
		t.Error(f)
	}
}

func shardOfKey(key string) int {
	parts, err := bus.SplitKey(key)
	if err != nil || len(parts) < 2 {
		return -1
	}
	return shard.Of(parts[1])
}

func start(t *testing.T, server *bustest.Bus, b *board, name string, shards int) *peer {
	t.Helper()
	conn := server.ConnectConfig(t, bus.Config{Service: bus.ServiceSyncd, Node: node, Instance: name})
	status, err := bus.Open(t.Context(), conn, bus.Status)
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{name: name, b: b, done: make(chan struct{})}
	p.writer = bus.NewWriter(status, bus.WriterOptions[*podplanev1.StatusRecord]{Fences: bus.NewFences(status, shardOfKey)})
	p.k = shard.New(shard.Config{Bus: conn, Worker: p, Records: []shard.Records{p.writer}, Shards: shards, TTL: ttl})
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	var writing sync.WaitGroup
	writing.Go(func() { _ = p.writer.Run(ctx) })
	go func() {
		defer close(p.done)
		if err := p.k.Run(ctx); err != nil {
			t.Error(err)
		}
		writing.Wait()
	}()
	t.Cleanup(p.stop)
	return p
}

func (p *peer) stop() {
	p.cancel()
	<-p.done
}

func (b *board) want(t *testing.T, want ...int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	slices.Sort(want)
	testkit.Eventually(ctx, t, fmt.Sprintf("shards are spread as %v", want), func(context.Context) error {
		var got []int
		for _, n := range b.counts() {
			got = append(got, n)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("spread as %v", b.counts())
		}
		return nil
	})
}

// TestSpread lets replicas come and go: the shards are divided fairly each time, and no two ever work on one.
func TestSpread(t *testing.T) {
	t.Parallel()
	server, b := bustest.New(t), &board{owner: map[int]string{}}
	first := start(t, server, b, "a", 0)
	b.want(t, 16)
	second := start(t, server, b, "b", 0)
	b.want(t, 8, 8)
	start(t, server, b, "c", 0)
	b.want(t, 5, 5, 6)
	began := time.Now()
	first.stop()
	b.want(t, 8, 8)
	t.Logf("taken over %v after a graceful stop", time.Since(began).Round(time.Millisecond))
	second.stop()
	b.want(t, 16)
	b.check(t)
}

// TestSpare has one shard: it stays where it is when others come, and goes to one of them when its holder stops.
func TestSpare(t *testing.T) {
	t.Parallel()
	server, b := bustest.New(t), &board{owner: map[int]string{}}
	leader := start(t, server, b, "z", 1)
	b.want(t, 1)
	start(t, server, b, "a", 1)
	start(t, server, b, "b", 1)
	other := server.ConnectConfig(t, bus.Config{Service: bus.ServiceSyncd, Node: node, Instance: "reader"})
	leases, err := bus.Open(t.Context(), other, bus.Leases)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	testkit.Eventually(ctx, t, "three replicas are there", func(ctx context.Context) error {
		list, err := leases.List(ctx, bus.LeasePattern(bus.ServiceSyncd, node))
		if err == nil && len(list) != 4 {
			err = fmt.Errorf("%d leases", len(list))
		}
		return err
	})
	if c := b.counts(); c["z"] != 1 {
		t.Errorf("the shard went from z to %v without a reason", c)
	}
	leader.stop()
	b.want(t, 1)
	if c := b.counts(); c["z"] != 0 {
		t.Errorf("z has stopped and still leads")
	}
	b.check(t)
}

// TestExpelled takes a replica that does not renew out by its TTL, and gives its shards to another; its late writes are refused,
// and when it renews again it is a new one.
func TestExpelled(t *testing.T) {
	t.Parallel()
	server, b := bustest.New(t), &board{owner: map[int]string{}}
	conn := server.ConnectConfig(t, bus.Config{Service: bus.ServiceSyncd, Node: node, Instance: "hung"})
	leases, err := bus.Open(t.Context(), conn, bus.Leases)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	rec := &podplanev1.LeaseRecord{Schema: 1, Holder: "hung", Instance: "hung", TtlMillis: ttl.Milliseconds(), Host: "elsewhere"}
	if _, err := leases.Create(ctx, bus.LeaseKey(bus.ServiceSyncd, node, "replica-hung"), rec); err != nil {
		t.Fatal(err)
	}
	for n := range shard.Count {
		if _, err := leases.Create(ctx, bus.LeaseKey(bus.ServiceSyncd, node, strconv.Itoa(n)), rec); err != nil {
			t.Fatal(err)
		}
	}
	status, err := bus.Open(ctx, conn, bus.Status)
	if err != nil {
		t.Fatal(err)
	}
	key := bus.PodKey(node, "some-uid")
	fences := bus.NewFences(status, shardOfKey)
	refused := make(chan error, 16)
	late := bus.NewWriter(status, bus.WriterOptions[*podplanev1.StatusRecord]{Fences: fences, OnError: func(_ string, err error, _ bool) { refused <- err }})
	stop := make(chan struct{})
	running, end := context.WithCancel(ctx)
	go func() { defer close(stop); _ = late.Run(running) }()
	defer func() { end(); <-stop }()
	holds := true
	if err := late.Take(ctx, shardOfKey(key), func() bool { return holds }); err != nil {
		t.Fatal(err)
	}
	late.Set(key, &podplanev1.StatusRecord{Uid: "some-uid", SandboxId: "first"})
	if err := late.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	start(t, server, b, "new", 0)
	b.want(t, 16)
	if took := time.Since(began); took < ttl {
		t.Errorf("taken over after %v, before the TTL of %v", took, ttl)
	}
	holds = false
	late.Set(key, &podplanev1.StatusRecord{Uid: "some-uid", SandboxId: "late"})
	select {
	case <-refused:
	case <-ctx.Done():
		t.Fatal("the late write was not refused")
	}
	e, err := status.Get(ctx, key)
	if err != nil || e.Value.GetSandboxId() != "first" {
		t.Errorf("after the late write: %v, %v", e.Value, err)
	}
	b.check(t)
}

// TestDeadProcess does not wait for the TTL of a process of this host that is gone.
func TestDeadProcess(t *testing.T) {
	t.Parallel()
	server, b := bustest.New(t), &board{owner: map[int]string{}}
	p := start(t, server, b, "probe", 0)
	b.want(t, 16)
	conn := server.ConnectConfig(t, bus.Config{Service: bus.ServiceSyncd, Node: node, Instance: "x"})
	leases, err := bus.Open(t.Context(), conn, bus.Leases)
	if err != nil {
		t.Fatal(err)
	}
	e, err := leases.Get(t.Context(), bus.LeaseKey(bus.ServiceSyncd, node, "replica-probe"))
	if err != nil {
		t.Fatal(err)
	}
	if e.Value.GetHost() == "" {
		t.Fatal("the record does not say where the process is")
	}
	p.stop()
	dead := e.Value
	dead.Holder, dead.Instance, dead.PidStarted, dead.TtlMillis = "dead", "dead", dead.GetPidStarted()-1, time.Hour.Milliseconds()
	if _, err := leases.Create(t.Context(), bus.LeaseKey(bus.ServiceSyncd, node, "replica-dead"), dead); err != nil {
		t.Fatal(err)
	}
	for n := range shard.Count {
		if _, err := leases.Create(t.Context(), bus.LeaseKey(bus.ServiceSyncd, node, strconv.Itoa(n)), dead); err != nil {
			t.Fatal(err)
		}
	}
	start(t, server, b, "next", 0)
	b.want(t, 16)
	b.check(t)
}
