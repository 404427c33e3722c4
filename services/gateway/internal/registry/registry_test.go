package registry_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
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

func TestTargetsForPrometheus(t *testing.T) {
	record := func(service, instance, address string) bus.Entry[*podplanev1.ServiceRecord] {
		return bus.Entry[*podplanev1.ServiceRecord]{Value: &podplanev1.ServiceRecord{Service: service, Node: "n1", Instance: instance, HttpAddress: address}}
	}
	away := fault.New(fault.Unavailable, "away")
	cases := map[string]struct {
		lister lister
		code   int
		want   string
	}{
		"reachable ones": {
			lister{entries: []bus.Entry[*podplanev1.ServiceRecord]{record("syncd", "a", "10.0.0.2:1"), record("prober", "b", "127.0.0.1:2")}},
			200,
			`[{"targets":["10.0.0.2:1"],"labels":{"job":"syncd","node":"n1","replica":"a"}}]`,
		},
		"one host": {
			lister{entries: []bus.Entry[*podplanev1.ServiceRecord]{record("prober", "b", "127.0.0.1:2")}},
			200,
			`[{"targets":["127.0.0.1:2"],"labels":{"job":"prober","node":"n1","replica":"b"}}]`,
		},
		"none":          {lister{}, 200, "[]"},
		"nothing known": {lister{err: away}, 503, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := httptest.NewRecorder()
			registry.New(&c.lister).Targets().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/scrape-targets", nil))
			if w.Code != c.code || (c.want != "" && w.Body.String() != c.want) {
				t.Errorf("got %d %s, want %d %s", w.Code, w.Body, c.code, c.want)
			}
		})
	}
}
