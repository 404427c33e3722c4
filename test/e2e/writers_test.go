package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/testkit"
	"github.com/podplane/podplane/test/harness"
)

// TestOneWriterPerRecord runs pods through a life, lists who published what, and finds that nobody but the declared writers did.
func TestOneWriterPerRecord(t *testing.T) {
	t.Parallel()
	s, ctx := newStack(t), testContext(t)
	heard := audit(t, s)
	live(t, ctx, s)
	// What a node says about itself it says when syncd starts.
	if err := s.Kill(bus.ServiceSyncd); err != nil {
		t.Fatal(err)
	}
	// What is renewed without anything happening is heard within its interval.
	testkit.Eventually(testContextOf(t, time.Minute), t, "every service is heard", func(context.Context) error {
		return heard.missing(s.Node(), bus.BucketEvictions, bus.StreamEvents)
	})
	t.Logf("who published what:\n%s", heard.table())
	heard.check(t, s.Node())
	heard.mu.Lock()
	defer heard.mu.Unlock()
	for service, reason := range map[string]string{bus.ServiceSyncd: "Started", bus.ServiceVolumed: "FailedMount", bus.ServiceProber: "Unhealthy"} {
		if !heard.events[service][reason] {
			t.Errorf("%s published no Event %s, only %v", service, reason, heard.events[service])
		}
	}
}

// live makes the services write each kind of record: a pod that becomes Ready, fails its probe and is deleted, and one that lacks a volume.
func live(t *testing.T, ctx context.Context, s *harness.Stack) {
	t.Helper()
	objects := "/api/v1/namespaces/" + ns(t) + "/"
	for kind, body := range map[string]string{
		"configmaps": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {color: blue}\n",
		"secrets":    "apiVersion: v1\nkind: Secret\nmetadata: {name: settings}\nstringData: {password: hunter2}\n",
	} {
		if _, err := s.Want(ctx, http.StatusCreated, http.MethodPost, objects+kind, "application/yaml", []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	for name, spec := range map[string]string{
		"whole": `
  terminationGracePeriodSeconds: 1
  volumes: [{name: cm, configMap: {name: settings}}, {name: sec, secret: {secretName: settings}}]
  containers:
  - name: app
    image: $IMAGE
    args: [serve, -addr, ":8080"]
    volumeMounts: [{name: cm, mountPath: /cm}, {name: sec, mountPath: /sec}]
    readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, failureThreshold: 1}
`,
		"stuck": `
  volumes: [{name: cm, configMap: {name: not-there}}]
  containers: [{name: app, image: $IMAGE, args: [sleep, forever], volumeMounts: [{name: cm, mountPath: /cm}]}]
`,
	} {
		if _, err := s.Apply(ctx, ns(t), manifest(name, spec)); err != nil {
			t.Fatal(err)
		}
	}
	p, err := s.WaitReady(ctx, ns(t), "whole")
	if err != nil {
		t.Fatal(err)
	}
	post(t, "http://"+net.JoinHostPort(p.Status.PodIP, "8080")+"/healthz?ok=false", http.StatusServiceUnavailable)
	if _, err := s.WaitPod(ctx, ns(t), "whole", "is not Ready any more", func(p *corev1.Pod) bool { return p != nil && !harness.IsReady(p) }); err != nil {
		t.Fatal(err)
	}
	wantEvents(t, s, ns(t), "whole", "Started", "Unhealthy")
	wantEvents(t, s, ns(t), "stuck", "FailedMount")
	for _, name := range []string{"whole", "stuck"} {
		if err := s.Delete(ctx, ns(t), name, 1); err != nil {
			t.Fatal(err)
		}
		if err := s.WaitGone(ctx, ns(t), name); err != nil {
			t.Fatal(err)
		}
	}
	for _, kind := range []string{"configmaps", "secrets"} {
		if _, err := s.Want(ctx, http.StatusOK, http.MethodDelete, objects+kind+"/settings", "", nil); err != nil {
			t.Fatal(err)
		}
	}
}

// connectAs connects to the stack's bus with one of the keys that `podplane up` made.
func connectAs(t *testing.T, s *harness.Stack, service string) *bus.Conn {
	t.Helper()
	c, err := bus.Connect(testContext(t), bus.Config{
		URL: s.Info().NATSURL, Node: s.Node(), Service: service, Instance: "test",
		NKeySeedFile: filepath.Join(s.RunDir(), "keys", service+".nk"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return c
}

// publications is what an audit heard.
type publications struct {
	mu sync.Mutex
	// writers counts by store, prefix of the subject and service.
	writers map[string]map[string]map[string]int
	// events has the reasons of the Events that a service published.
	events map[string]map[string]bool
	faults []string
}

// audit listens to the stack's bus until the test ends.
func audit(t *testing.T, s *harness.Stack) *publications {
	t.Helper()
	p := &publications{writers: map[string]map[string]map[string]int{}, events: map[string]map[string]bool{}}
	conn, listening, ended := connectAs(t, s, "admin"), make(chan struct{}), make(chan error, 1)
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		ended <- bus.Audit(ctx, conn, bus.AuditHandler{
			Listening: func() { close(listening) },
			Published: func(m bus.Publication) { p.add(m, s.Node()) },
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	select {
	case <-listening:
	case <-time.After(testTimeout):
		t.Fatal("the audit does not listen")
	}
	return p
}

func (p *publications) add(m bus.Publication, node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	prefix := m.Subject
	tokens := strings.Split(m.Subject, ".")
	switch m.Store {
	case bus.BucketConditions, bus.BucketNodes: // each condition is a record of its own, and each node
	case bus.BucketServices, bus.BucketLeases:
		prefix = strings.Join(tokens[:len(tokens)-1], ".") + ".*"
	case bus.BucketObjects:
		prefix = strings.Join(tokens[:min(3, len(tokens))], ".") + ".>"
	default:
		prefix = strings.Join(append(tokens[:2:2], bus.Token(node), ">"), ".")
	}
	if p.writers[m.Store] == nil {
		p.writers[m.Store] = map[string]map[string]int{}
	}
	if p.writers[m.Store][prefix] == nil {
		p.writers[m.Store][prefix] = map[string]int{}
	}
	p.writers[m.Store][prefix][m.Service]++
	if !mayPublish(node, m.Service, m.Subject) {
		p.faults = append(p.faults, fmt.Sprintf("%q published to %s, which is not its own", m.Service, m.Subject))
	}
	if m.Store == bus.StreamEvents {
		p.addEvent(m)
	}
}

func (p *publications) addEvent(m bus.Publication) {
	var e corev1.Event
	if err := json.Unmarshal(m.Data, &e); err != nil {
		p.faults = append(p.faults, fmt.Sprintf("%s: %v", m.Subject, err))
		return
	}
	if want := "podplane-" + m.Service; e.Source.Component != want || e.ReportingController != want {
		p.faults = append(p.faults, fmt.Sprintf("an Event %s of %s says that it is from %q and %q", e.Reason, m.Service, e.Source.Component, e.ReportingController))
	}
	if p.events[m.Service] == nil {
		p.events[m.Service] = map[string]bool{}
	}
	p.events[m.Service][e.Reason] = true
}

// missing names the declared writers that were not heard, but for those of some stores.
func (p *publications) missing(node string, but ...string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range bus.Ownerships(node) {
		if slices.Contains(but, o.Store) {
			continue
		}
		for service, subjects := range o.Writers {
			for _, subject := range subjects {
				// Fences are written when a replica takes its shards over, which was before.
				if !strings.HasPrefix(subject, "$FENCE.") && !p.heard(o.Store, service, subject) {
					return fmt.Errorf("nothing heard from %s on %s; heard:\n%s", service, subject, p.rows())
				}
			}
		}
	}
	return nil
}

// from says whether a service published anything to a store.
func (p *publications) from(store, service string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.heard(store, service, ">")
}

func (p *publications) heard(store, service, pattern string) bool {
	for prefix, services := range p.writers[store] {
		if services[service] > 0 && (prefix == pattern || matches(pattern, prefix)) {
			return true
		}
	}
	return false
}

func (p *publications) check(t *testing.T, node string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.faults {
		t.Error(f)
	}
	for store, prefixes := range p.writers {
		for prefix, services := range prefixes {
			if store != bus.StreamEvents && len(services) != 1 {
				t.Errorf("%s has the writers %v, want one", prefix, services)
			}
		}
	}
}

// table lists who published what.
func (p *publications) table() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rows()
}

func (p *publications) rows() string {
	var b strings.Builder
	for _, store := range slices.Sorted(maps.Keys(p.writers)) {
		for _, prefix := range slices.Sorted(maps.Keys(p.writers[store])) {
			for _, service := range slices.Sorted(maps.Keys(p.writers[store][prefix])) {
				fmt.Fprintf(&b, "%-12s %-60s %-10s %6d\n", store, prefix, service, p.writers[store][prefix][service])
			}
		}
	}
	return b.String()
}

// mayPublish says what the declarations let a service publish to.
func mayPublish(node, service, subject string) bool {
	for _, o := range bus.Ownerships(node) {
		for _, pattern := range o.Writers[service] {
			if matches(pattern, subject) {
				return true
			}
		}
	}
	return false
}

// matches says whether a subject matches a pattern of the bus.
func matches(pattern, subject string) bool {
	p, s := strings.Split(pattern, "."), strings.Split(subject, ".")
	for i := range p {
		switch {
		case p[i] == ">":
			return len(s) > i
		case i >= len(s) || (p[i] != "*" && p[i] != s[i]):
			return false
		}
	}
	return len(p) == len(s)
}

// TestPublishingIsRefused tries each service's key on every record of every service, on other nodes' and on the bus's own
// management: the server lets it publish what it owns and nothing else.
func TestPublishingIsRefused(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	var subjects []string
	for _, node := range []string{s.Node(), "another-node"} {
		for _, o := range bus.Ownerships(node) {
			for _, patterns := range o.Writers {
				for _, p := range patterns {
					subjects = append(subjects, strings.NewReplacer(">", "x.y", "*", "x").Replace(p))
				}
			}
		}
	}
	slices.Sort(subjects)
	subjects = slices.Compact(subjects)
	for _, service := range append(bus.AllServices(), bus.ServiceCLI) {
		c, allowed := connectAs(t, s, service), 0
		for _, subject := range append(subjects, "$JS.API.STREAM.DELETE.KV_pods", "$JS.API.STREAM.PURGE.KV_pods", "$JS.API.STREAM.CREATE.mine", "$SYS.REQ.SERVER.PING", "elsewhere") {
			want := mayPublish(s.Node(), service, subject)
			if got, err := bus.MayPublish(ctx, c, subject); err != nil || got != want {
				t.Errorf("%s may publish to %s: %v, %v; want %v", service, subject, got, err, want)
			}
			if want {
				allowed++
			}
		}
		t.Logf("%-8s may publish to %2d of %d", service, allowed, len(subjects))
		if (allowed == 0) != (service == bus.ServiceCLI) {
			t.Errorf("%s may publish to %d subjects", service, allowed)
		}
	}
}
