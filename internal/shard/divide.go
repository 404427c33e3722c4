package shard

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

func (k *Keeper) record(holder string, shard int) *podplanev1.LeaseRecord {
	r := proto.CloneOf(k.here)
	r.Schema, r.Service, r.Node, r.Instance = 1, k.conn.Service, k.conn.Node, k.conn.Instance
	r.Holder, r.Shard, r.TtlMillis, r.RenewedAt = holder, uint32(shard), k.cfg.TTL.Milliseconds(), timestamppb.Now()
	return r
}

// divide keeps this replica's share until ctx ends.
func (k *Keeper) divide(ctx context.Context) {
	for ctx.Err() == nil {
		again := k.step(ctx)
		k.show()
		var due <-chan time.Time
		var timer *time.Timer
		if again > 0 {
			timer = time.NewTimer(again)
			due = timer.C
		}
		select {
		case <-ctx.Done():
		case <-k.wake:
		case <-due:
		}
		if timer != nil {
			timer.Stop()
		}
	}
}

// step looks once at who is there and what is free. It says when to look again at the latest, 0 for when something changes.
func (k *Keeper) step(ctx context.Context) (again time.Duration) {
	if !k.counts() {
		k.drop(ctx)
		return k.cfg.TTL / 6
	}
	k.expel(ctx)
	d := k.look()
	if d.self == "" || !d.known[d.self] {
		return k.cfg.TTL / 6 // the watch is about to show our own record
	}
	plan := d.share()
	if len(plan.release) > 0 {
		k.release(ctx, plan.release)
	}
	gained, failed := k.claim(ctx, d, plan.claim)
	resumed := slices.DeleteFunc(plan.keep, func(n int) bool { return k.working[n] })
	if !k.gain(ctx, d.self, append(gained, resumed...)) || failed {
		return k.cfg.TTL / 6
	}
	return k.nextLook(d)
}

// nextLook is when the renewals must be looked at: not at all while nobody else is there.
func (k *Keeper) nextLook(d division) time.Duration {
	left := time.Duration(k.valid.Load()) - time.Since(k.base)
	if len(d.known) > 1 {
		return min(k.cfg.TTL/3, max(left, time.Millisecond))
	}
	return max(left, time.Millisecond) + k.cfg.TTL/30
}

// expel takes out the replicas that have not renewed in time, and those whose process is gone.
func (k *Keeper) expel(ctx context.Context) {
	type suspect struct {
		name string
		rev  uint64
		why  string
	}
	var dead []suspect
	k.mu.Lock()
	for name, r := range k.replicas {
		if name == k.self {
			continue
		}
		age := time.Since(r.seen)
		switch {
		case k.self != "" && r.rec.GetInstance() == k.conn.Instance && r.rec.GetHost() == k.here.GetHost() && r.rec.GetPid() == k.here.GetPid():
			dead = append(dead, suspect{name, r.rev, "it is this one under an earlier name"})
		case age > time.Duration(r.rec.GetTtlMillis())*time.Millisecond:
			dead = append(dead, suspect{name, r.rev, "its lease was not renewed for " + age.Round(time.Millisecond).String()})
		case (!r.checked || age > k.cfg.TTL*2/5) && gone(r.rec, k.here):
			dead = append(dead, suspect{name, r.rev, "its process is gone"})
		}
		r.checked = true
	}
	k.mu.Unlock()
	for _, s := range dead {
		if err := k.bucket.DeleteRevision(ctx, k.key(replicaPrefix+s.name), s.rev); err != nil {
			if !fault.Is(err, fault.Conflict) && ctx.Err() == nil {
				k.cfg.Log.Debug("can't take out a replica", "lease.holder", s.name, "error", err)
			}
			continue // it is alive after all, or the watch will tell
		}
		k.cfg.Log.Info("a replica is taken out", "lease.holder", s.name, "reason", s.why)
		k.mu.Lock()
		delete(k.replicas, s.name)
		k.mu.Unlock()
	}
}

// division is what is known at one moment.
type division struct {
	self   string
	known  map[string]bool
	leases map[int]lease
	shards int
}

func (k *Keeper) look() division {
	k.mu.Lock()
	defer k.mu.Unlock()
	d := division{self: k.self, known: make(map[string]bool, len(k.replicas)), leases: make(map[int]lease, len(k.leases)), shards: k.cfg.Shards}
	for name := range k.replicas {
		d.known[name] = true
	}
	for n, l := range k.leases {
		d.leases[n] = l
	}
	return d
}

// share is what to do with the shards.
type share struct{ keep, release, claim []int }

// share decides: at most ceil(shards/replicas) each; who has more gives up the rest, and who has that many gives one up
// while another has less than floor(shards/replicas).
func (d division) share() share {
	var s share
	var mine, free []int
	count := make(map[string]int, len(d.known))
	for name := range d.known {
		count[name] = 0
	}
	for n := range d.shards {
		l, leased := d.leases[n]
		switch {
		case leased && l.holder == d.self:
			mine = append(mine, n)
		case !leased || !d.known[l.holder]:
			free = append(free, n)
		default:
			count[l.holder]++
		}
	}
	least, most := d.shards/len(d.known), (d.shards+len(d.known)-1)/len(d.known)
	allowed := most
	for name, n := range count {
		if name != d.self && n < least && len(free) == 0 && len(mine) == most && most > least {
			allowed = most - 1
		}
	}
	if len(mine) > allowed {
		s.keep, s.release = mine[:allowed], mine[allowed:]
		return s
	}
	s.keep = mine
	s.claim = free[:min(len(free), allowed-len(mine))]
	return s
}

// claim writes the records of free shards. Those that another replica took first are left to it.
func (k *Keeper) claim(ctx context.Context, d division, shards []int) (gained []int, failed bool) {
	if len(shards) == 0 {
		return nil, false
	}
	got, errs := make([]bool, len(shards)), make([]error, len(shards))
	var g errgroup.Group
	g.SetLimit(parallel)
	for i, n := range shards {
		g.Go(func() error {
			got[i], errs[i] = k.claimOne(ctx, d, n)
			return nil
		})
	}
	_ = g.Wait() // the errors are in errs
	for i, n := range shards {
		if got[i] {
			gained = append(gained, n)
		}
		if errs[i] != nil {
			failed = true
			k.cfg.Log.Debug("can't claim a shard", "lease.shard", n, "error", errs[i])
		}
	}
	return gained, failed
}

func (k *Keeper) claimOne(ctx context.Context, d division, n int) (bool, error) {
	key, rec := k.key(strconv.Itoa(n)), k.record(d.self, n)
	var rev uint64
	var err error
	if old, leased := d.leases[n]; leased {
		rev, err = k.bucket.Update(ctx, key, rec, old.rev)
	} else {
		rev, err = k.bucket.Create(ctx, key, rec)
	}
	switch {
	case fault.Is(err, fault.Conflict), fault.Is(err, fault.AlreadyExists):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("claim shard %d: %w", n, err)
	}
	k.mu.Lock()
	k.leases[n] = lease{d.self, rev}
	k.mu.Unlock()
	return true, nil
}

// gain begins the work on shards whose records name us. It says whether all went well; what did not is tried again.
func (k *Keeper) gain(ctx context.Context, self string, shards []int) bool {
	if len(shards) == 0 {
		return true
	}
	for _, n := range shards {
		for _, r := range k.cfg.Records {
			if err := r.Take(ctx, n, func() bool { return k.names(n, self) }); err != nil {
				k.cfg.Log.Warn("a shard's records can't be taken over yet", "lease.shard", n, "error", err)
				return false
			}
		}
	}
	for _, n := range shards {
		k.working[n] = true
		k.held[n].Store(true)
	}
	if err := k.cfg.Worker.Gain(ctx, shards); err != nil {
		if ctx.Err() == nil {
			k.cfg.Log.Warn("work on shards can't begin yet", "lease.shards", shards, "error", err)
		}
		k.stopWork(ctx, shards)
		k.letGo(shards)
		return false
	}
	k.cfg.Log.Info("shards taken over", "lease.shards", shards)
	return true
}

// names says whether, for all that is known, a shard's record names us and we count.
func (k *Keeper) names(n int, self string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.self == self && k.leases[n].holder == self && k.counts()
}

// stopWork ends the work on shards.
func (k *Keeper) stopWork(ctx context.Context, shards []int) {
	for _, n := range shards {
		k.held[n].Store(false)
	}
	k.cfg.Worker.Lose(ctx, shards)
}

// letGo lowers the fences of shards whose work has ended.
func (k *Keeper) letGo(shards []int) {
	for _, n := range shards {
		k.working[n] = false
		for _, r := range k.cfg.Records {
			r.Give(n)
		}
	}
}

func (k *Keeper) active() []int {
	var list []int
	for n, w := range k.working {
		if w {
			list = append(list, n)
		}
	}
	return list
}

// drop ends all work at once: the lease has run out.
func (k *Keeper) drop(ctx context.Context) {
	shards := k.active()
	if len(shards) == 0 {
		return
	}
	k.cfg.Log.Warn("the lease has run out: all work stops", "lease.shards", shards)
	over, cancel := context.WithCancel(ctx)
	cancel()
	for _, n := range shards {
		k.held[n].Store(false)
		for _, r := range k.cfg.Records {
			r.Give(n)
		}
	}
	k.stopWork(over, shards)
	k.letGo(shards)
}

// release gives shards up in order: the work ends, what it has to say is stored, then others may take them.
func (k *Keeper) release(ctx context.Context, shards []int) {
	working := slices.DeleteFunc(slices.Clone(shards), func(n int) bool { return !k.working[n] })
	if len(working) > 0 {
		k.stopWork(ctx, working)
		for _, r := range k.cfg.Records {
			flush, cancel := context.WithTimeout(ctx, k.cfg.TTL/3)
			if err := r.Flush(flush); err != nil {
				k.cfg.Log.Debug("not all records were stored before shards were given up", "error", err)
			}
			cancel()
		}
		k.letGo(working)
	}
	for _, n := range shards {
		k.mu.Lock()
		l := k.leases[n]
		k.mu.Unlock()
		if err := k.bucket.DeleteRevision(ctx, k.key(strconv.Itoa(n)), l.rev); err != nil {
			k.cfg.Log.Debug("can't give a shard up yet", "lease.shard", n, "error", err)
			continue
		}
		k.mu.Lock()
		if k.leases[n].rev == l.rev {
			delete(k.leases, n)
		}
		k.mu.Unlock()
	}
	k.cfg.Log.Info("shards given up", "lease.shards", shards)
}

// leave gives all up at the end.
func (k *Keeper) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	d := k.look()
	var mine []int
	for n, l := range d.leases {
		if l.holder == d.self && d.self != "" {
			mine = append(mine, n)
		}
	}
	slices.Sort(mine)
	if !k.counts() {
		k.drop(ctx)
		return
	}
	k.release(ctx, mine)
	k.valid.Store(0)
	if ctx.Err() != nil {
		return // what did not end in time ends with the process; until then the records stay
	}
	if err := k.bucket.Delete(ctx, k.key(replicaPrefix+d.self)); err != nil {
		k.cfg.Log.Debug("own lease not given up; it expires", "error", err)
	}
	k.show()
}

// show tells which shards are held when that has changed.
func (k *Keeper) show() {
	shards := k.active()
	if text := fmt.Sprint(shards); text != k.shown {
		k.shown = text
		if k.cfg.Shown != nil {
			k.cfg.Shown(shards)
		}
	}
}
