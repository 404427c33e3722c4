// Package registry answers which replicas of which services run, from the registrations on the bus.
//
// It keeps the last known ones while the bus is away, and asks the bus for fresh ones at each call while it is there. It holds one record
// per replica and nothing else.
package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// askTimeout bounds the question to the bus; after it the last known replicas are answered.
const askTimeout = time.Second

// Lister reads the registrations; *bus.Bucket is one.
type Lister interface {
	List(ctx context.Context, pattern string) ([]bus.Entry[*podplanev1.ServiceRecord], error)
}

// Watcher follows them; *bus.Conn is one.
type Watcher interface {
	WatchServices(ctx context.Context, service string, f func([]*podplanev1.ServiceRecord)) error
}

// Registry serves ServiceService.
type Registry struct {
	podplanev1.UnimplementedServiceServiceServer
	lister Lister

	mu    sync.Mutex
	known []*podplanev1.ServiceRecord
	seen  bool
	// followers are told of changes
	followers map[chan struct{}]struct{}
}

// New makes a registry that knows nothing until Run.
func New(l Lister) *Registry { return &Registry{lister: l, followers: map[chan struct{}]struct{}{}} }

// Run follows the registrations until ctx ends.
func (r *Registry) Run(ctx context.Context, w Watcher) error {
	err := w.WatchServices(ctx, "", func(records []*podplanev1.ServiceRecord) { r.keep(records) })
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("watch the registrations: %w", err)
	}
	return err
}

func (r *Registry) keep(records []*podplanev1.ServiceRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known, r.seen = slices.Clone(records), true
	for f := range r.followers {
		select {
		case f <- struct{}{}:
		default:
		}
	}
}

// ListServices answers the replicas, sorted by service, node and instance.
func (r *Registry) ListServices(ctx context.Context, req *podplanev1.ListServicesRequest) (*podplanev1.ListServicesResponse, error) {
	records, err := r.fresh(ctx)
	if err != nil {
		var known bool
		if records, known = r.last(); !known {
			return nil, fault.WithRetryAfter(fault.New(fault.Unavailable, "list the registered services: %w", err), time.Second)
		}
	}
	out := &podplanev1.ListServicesResponse{}
	for _, s := range records {
		if req.GetNode() == "" || s.GetNode() == req.GetNode() {
			out.Services = append(out.Services, proto.CloneOf(s))
		}
	}
	slices.SortFunc(out.Services, func(a, b *podplanev1.ServiceRecord) int { return strings.Compare(key(a), key(b)) })
	return out, nil
}

func (r *Registry) fresh(ctx context.Context) ([]*podplanev1.ServiceRecord, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	entries, err := r.lister.List(ctx, ">")
	if err != nil {
		return nil, err
	}
	records := make([]*podplanev1.ServiceRecord, 0, len(entries))
	for _, e := range entries {
		records = append(records, e.Value)
	}
	return records, nil
}

func (r *Registry) last() ([]*podplanev1.ServiceRecord, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known, r.seen
}

func key(s *podplanev1.ServiceRecord) string {
	return s.GetService() + "\x00" + s.GetNode() + "\x00" + s.GetInstance()
}
