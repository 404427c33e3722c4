package rpc

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/resolver"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// Scheme is that of targets which are found on the bus: nats:///syncd?node=n1, or nats:///syncd?node=n1&else=any.
const Scheme = "nats"

// watchRetry is the pause before a watch that broke is begun again.
const watchRetry = time.Second

// Directory knows the replicas of services; *bus.Conn is one.
type Directory interface {
	// WatchServices calls f with all replicas of a service, now and after each change, until ctx ends. While the bus is away the last
	// known ones stay.
	WatchServices(ctx context.Context, service string, f func([]*podplanev1.ServiceRecord)) error
}

func target(service, node string, anyNode bool) string {
	q := url.Values{"node": {node}}
	if anyNode {
		q.Set("else", "any")
	}
	return (&url.URL{Scheme: Scheme, Path: "/" + service, RawQuery: q.Encode()}).String()
}

type resolverBuilder struct {
	ctx       context.Context
	directory Directory
}

// Scheme gives the scheme that this resolver is for.
func (b *resolverBuilder) Scheme() string { return Scheme }

// Build starts the watch of one target.
func (b *resolverBuilder) Build(t resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	ctx, cancel := context.WithCancel(b.ctx)
	r := &busResolver{cc: cc, service: t.Endpoint(), node: t.URL.Query().Get("node"), anyNode: t.URL.Query().Get("else") == "any", cancel: cancel}
	r.done.Go(func() { r.run(ctx, b.directory) })
	return r, nil
}

// busResolver keeps a channel's addresses as the registrations say.
type busResolver struct {
	cc            resolver.ClientConn
	service, node string
	anyNode       bool
	cancel        context.CancelFunc
	done          sync.WaitGroup
}

func (r *busResolver) run(ctx context.Context, dir Directory) {
	for ctx.Err() == nil {
		if err := dir.WatchServices(ctx, r.service, r.update); err != nil && ctx.Err() == nil {
			r.cc.ReportError(err)
		}
		pause := time.NewTimer(watchRetry)
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
	}
}

// update hands the addresses to the channel, the youngest replica first; spares, which work on no shard, only when all are. An empty list takes the old ones away: a port that a dead
// replica had may belong to somebody else by now. The channel's complaint about an empty list says nothing new.
func (r *busResolver) update(records []*podplanev1.ServiceRecord) {
	records = slices.Clone(records)
	elsewhere := func(s *podplanev1.ServiceRecord) bool { return r.node != "" && s.GetNode() != r.node }
	if here := slices.DeleteFunc(slices.Clone(records), elsewhere); len(here) > 0 || !r.anyNode {
		records = here
	}
	if works := func(s *podplanev1.ServiceRecord) bool { return len(s.GetShards()) > 0 }; slices.ContainsFunc(records, works) {
		records = slices.DeleteFunc(records, func(s *podplanev1.ServiceRecord) bool { return !works(s) })
	}
	slices.SortStableFunc(records, func(a, b *podplanev1.ServiceRecord) int {
		if c := b.GetStartedAt().AsTime().Compare(a.GetStartedAt().AsTime()); c != 0 {
			return c
		}
		return strings.Compare(a.GetInstance(), b.GetInstance())
	})
	var addresses []resolver.Address
	for _, s := range records {
		known := slices.ContainsFunc(addresses, func(a resolver.Address) bool { return a.Addr == s.GetGrpcAddress() })
		if s.GetGrpcAddress() != "" && !known {
			addresses = append(addresses, resolver.Address{Addr: s.GetGrpcAddress()})
		}
	}
	_ = r.cc.UpdateState(resolver.State{Addresses: addresses})
}

// ResolveNow does nothing: the watch is always current.
func (r *busResolver) ResolveNow(resolver.ResolveNowOptions) {}

// Close ends the watch and waits for it.
func (r *busResolver) Close() {
	r.cancel()
	r.done.Wait()
}
