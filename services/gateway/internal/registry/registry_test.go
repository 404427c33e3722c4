package registry_test

import (
	"context"
	"errors"
	"testing"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/gateway/internal/registry"
)

type lister struct {
	entries []bus.Entry[*podplanev1.ServiceRecord]
	err     error
}

func (l *lister) List(context.Context, string) ([]bus.Entry[*podplanev1.ServiceRecord], error) {
	return l.entries, l.err
}

type watcher []*podplanev1.ServiceRecord

func (w watcher) WatchServices(_ context.Context, _ string, f func([]*podplanev1.ServiceRecord)) error {
	f(w)
	return context.Canceled
}

func names(t *testing.T, r *registry.Registry, node string) string {
	t.Helper()
	resp, err := r.ListServices(t.Context(), &podplanev1.ListServicesRequest{Node: node})
	if err != nil {
		return err.Error()
	}
	out := ""
	for _, s := range resp.GetServices() {
		out += s.GetService() + "@" + s.GetNode() + " "
	}
	return out
}

func TestListServices(t *testing.T) {
	record := func(service, node string) *podplanev1.ServiceRecord {
		return &podplanev1.ServiceRecord{Service: service, Node: node}
	}
	l := &lister{err: fault.New(fault.Unavailable, "away")}
	r := registry.New(l)
	if _, err := r.ListServices(t.Context(), &podplanev1.ListServicesRequest{}); !fault.Is(err, fault.Unavailable) || fault.RetryAfter(err) <= 0 {
		t.Errorf("nothing known and the bus away: %v", err)
	}
	if err := r.Run(t.Context(), watcher{record("old", "n1")}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if got := names(t, r, ""); got != "old@n1 " {
		t.Errorf("bus away: %q", got)
	}
	l.err = nil
	l.entries = []bus.Entry[*podplanev1.ServiceRecord]{{Value: record("syncd", "n2")}, {Value: record("syncd", "n1")}, {Value: record("pleg", "n1")}}
	if got := names(t, r, ""); got != "pleg@n1 syncd@n1 syncd@n2 " {
		t.Errorf("bus there: %q", got)
	}
	if got := names(t, r, "n1"); got != "pleg@n1 syncd@n1 " {
		t.Errorf("one node: %q", got)
	}
}
