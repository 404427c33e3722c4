package shard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

const (
	// DefaultTTL is for how long a replica that has not renewed its record still counts.
	DefaultTTL = 3 * time.Second
	// stopTimeout bounds the end of the work on all shards at a graceful stop.
	stopTimeout = 3 * time.Second
	// parallel is how many shards are claimed at one time.
	parallel = 8

	replicaPrefix = "replica-"
)

// Worker does the work on shards. Both methods are called from one goroutine, never at the same time.
type Worker interface {
	// Gain begins the work on shards, which are held from before the call. After an error they are given back and tried again.
	Gain(ctx context.Context, shards []int) error
	// Lose ends the work on shards, which count as not held (Keeper.Holds) already. When it returns nothing is done for them any more;
	// once ctx ends it returns as soon as nothing new is begun.
	Lose(ctx context.Context, shards []int)
}

// Records are guarded by the shards' fences; *bus.Writer is one.
type Records interface {
	// Take raises a shard's fence; still says whether it is held.
	Take(ctx context.Context, shard int, still func() bool) error
	// Give lowers it and drops what was not stored.
	Give(shard int)
	// Flush waits until all is stored.
	Flush(ctx context.Context) error
}

// Config is what a Keeper needs. Zero TTL and Shards take the defaults.
type Config struct {
	Bus *bus.Conn
	// Shards is Count by default.
	Shards  int
	TTL     time.Duration
	Worker  Worker
	Records []Records
	// Shown is told which shards are held whenever that changes; it may be nil.
	Shown func(shards []int)
	Log   *slog.Logger
}

// Keeper takes part in the division of a service's shards on a node. Make one with New and run it.
type Keeper struct {
	cfg     Config
	conn    bus.Config
	here    *podplanev1.LeaseRecord
	bucket  *bus.Bucket[*podplanev1.LeaseRecord]
	base    time.Time
	valid   atomic.Int64 // until when the replica counts, after base; 0: it does not
	held    []atomic.Bool
	working []bool // belongs to Run
	wake    chan struct{}
	joins   int
	shown   string

	mu       sync.Mutex
	self     string // the present holder name; "" when not joined
	selfRev  uint64
	replicas map[string]*replica
	leases   map[int]lease
}

// replica is another one, or ourselves, as last seen.
type replica struct {
	rec     *podplanev1.LeaseRecord
	rev     uint64
	seen    time.Time
	checked bool
}

// lease is a shard's record.
type lease struct {
	holder string
	rev    uint64
}

// New makes a Keeper. It holds nothing before Run.
func New(cfg Config) *Keeper {
	if cfg.Shards <= 0 {
		cfg.Shards = Count
	}
	if cfg.TTL <= 0 {
		cfg.TTL = DefaultTTL
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Keeper{
		cfg: cfg, conn: cfg.Bus.Config(), here: process(), base: time.Now(), held: make([]atomic.Bool, cfg.Shards), working: make([]bool, cfg.Shards),
		wake: make(chan struct{}, 1), replicas: map[string]*replica{}, leases: map[int]lease{},
	}
}

// Holds says whether the shard is held at this moment: ask before each thing that is done for it.
func (k *Keeper) Holds(shard int) bool { return k.held[shard].Load() && k.counts() }

// Joined says whether the replica takes part.
func (k *Keeper) Joined() bool { return k.counts() }

// Check is a readiness check: it fails while the replica does not take part in the division of shards.
func (k *Keeper) Check(context.Context) error {
	if !k.counts() {
		return fault.New(fault.Unavailable, "the lease is not renewed: the bus does not answer, or the replica is only joining")
	}
	return nil
}

func (k *Keeper) counts() bool { return time.Since(k.base) < time.Duration(k.valid.Load()) }

// Run takes part until ctx ends, then gives all up.
func (k *Keeper) Run(ctx context.Context) error {
	var err error
	if k.bucket, err = bus.Open(ctx, k.cfg.Bus, bus.Leases); err != nil {
		return ended(ctx, fmt.Errorf("open the leases: %w", err))
	}
	// What has to be there until everything is given up runs a little longer.
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	g, longer := errgroup.WithContext(longer)
	synced := make(chan struct{})
	g.Go(func() error {
		return k.bucket.Watch(longer, bus.LeasePattern(k.conn.Service, k.conn.Node), bus.Handler[*podplanev1.LeaseRecord]{
			Apply: k.apply, Synced: func() { close(synced) },
		})
	})
	g.Go(func() error {
		select {
		case <-synced:
			k.renewals(longer)
		case <-longer.Done():
		}
		return nil
	})
	g.Go(func() error {
		defer cancel()
		running, stop := context.WithCancel(ctx)
		defer stop()
		defer context.AfterFunc(longer, stop)() // a watch that failed for good
		k.divide(running)
		k.leave(running)
		return nil
	})
	return ended(ctx, g.Wait())
}

func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func (k *Keeper) key(what string) string { return bus.LeaseKey(k.conn.Service, k.conn.Node, what) }

// apply takes a record from the watch.
func (k *Keeper) apply(e bus.Entry[*podplanev1.LeaseRecord]) {
	parts, err := bus.SplitKey(e.Key)
	if err != nil || len(parts) != 3 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if name, ok := strings.CutPrefix(parts[2], replicaPrefix); ok {
		k.applyReplica(name, e)
		return
	}
	n, err := strconv.Atoi(parts[2])
	if err != nil || n < 0 || n >= k.cfg.Shards {
		return
	}
	old, known := k.leases[n]
	switch {
	case e.Revision != 0 && known && e.Revision <= old.rev:
		return
	case e.Deleted:
		delete(k.leases, n)
	default:
		k.leases[n] = lease{e.Value.GetHolder(), e.Revision}
	}
	k.poke()
}

func (k *Keeper) applyReplica(name string, e bus.Entry[*podplanev1.LeaseRecord]) {
	old := k.replicas[name]
	switch {
	case e.Deleted:
		delete(k.replicas, name)
		k.poke()
	case old == nil:
		k.replicas[name] = &replica{rec: e.Value, rev: e.Revision, seen: time.Now()}
		k.poke()
	case e.Revision > old.rev:
		old.rec, old.rev, old.seen = e.Value, e.Revision, time.Now()
	}
}

func (k *Keeper) poke() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// renewals joins and renews until ctx ends.
func (k *Keeper) renewals(ctx context.Context) {
	tick := time.NewTicker(k.cfg.TTL / 3)
	defer tick.Stop()
	back := make(chan struct{}, 1)
	stop := k.cfg.Bus.OnState(func(connected bool) {
		if connected {
			select {
			case back <- struct{}{}:
			default:
			}
		}
	})
	defer stop()
	for ctx.Err() == nil {
		k.renew(ctx)
		select {
		case <-ctx.Done():
		case <-tick.C:
		case <-back:
		}
	}
}

func (k *Keeper) renew(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, k.cfg.TTL/3)
	defer cancel()
	k.mu.Lock()
	self, rev := k.self, k.selfRev
	k.mu.Unlock()
	if self == "" {
		k.join(ctx)
		return
	}
	sent, unbroken := time.Now(), k.counts()
	rev, err := k.bucket.Update(ctx, k.key(replicaPrefix+self), k.record(self, 0), rev)
	if fault.Is(err, fault.Conflict) {
		// An earlier renewal may have been stored without an answer.
		var e bus.Entry[*podplanev1.LeaseRecord]
		if e, err = k.bucket.Get(ctx, k.key(replicaPrefix+self)); err == nil {
			rev, err = k.bucket.Update(ctx, k.key(replicaPrefix+self), k.record(self, 0), e.Revision)
		}
	}
	switch {
	case err == nil:
		k.mu.Lock()
		k.selfRev = rev
		k.mu.Unlock()
		k.extend(sent)
	case fault.Is(err, fault.NotFound), fault.Is(err, fault.Conflict):
		k.cfg.Log.Warn("expelled by another replica, or forgotten by the bus; joining again", "lease.holder", self)
		k.mu.Lock()
		k.self = ""
		k.mu.Unlock()
		k.valid.Store(0)
		k.poke()
		k.join(ctx)
	case unbroken && k.alone():
		k.extend(sent) // nobody is there who could take over
	}
}

// join makes the replica's own record.
func (k *Keeper) join(ctx context.Context) {
	k.joins++
	name := k.conn.Instance
	if k.joins > 1 {
		name += "-" + strconv.Itoa(k.joins)
	}
	sent := time.Now()
	rev, err := k.bucket.Create(ctx, k.key(replicaPrefix+name), k.record(name, 0))
	if err != nil {
		if ctx.Err() == nil {
			k.cfg.Log.Debug("can't join the replicas yet", "error", err)
		}
		return // under another name next time: this one may be stored after all, and expires
	}
	k.mu.Lock()
	k.self, k.selfRev = name, rev
	k.mu.Unlock()
	k.extend(sent)
}

// extend counts from before a renewal was sent.
func (k *Keeper) extend(sent time.Time) {
	was := k.counts()
	k.valid.Store(int64(sent.Sub(k.base) + k.cfg.TTL - k.cfg.TTL/6))
	if !was {
		k.poke()
	}
}

func (k *Keeper) alone() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name := range k.replicas {
		if name != k.self {
			return false
		}
	}
	return true
}
