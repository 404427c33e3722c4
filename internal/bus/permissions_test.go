package bus_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/embedded"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

const (
	here      = "node.a" // its dot is escaped in keys
	elsewhere = "node.b"
)

// account is a service on a bus with permissions.
type account struct {
	service string
	c       *bus.Conn
}

// act is something that a service may do or not.
type act struct {
	what    string
	writers []string
	do      func(context.Context, *bus.Conn) error
}

// acts are all writes of the schema, from its documentation in ARCHITECTURE.md and not from schema.go.
func acts() []act {
	var list []act
	add := func(what string, do func(context.Context, *bus.Conn) error, writers ...string) {
		list = append(list, act{what, writers, do})
	}
	pod := bus.PodKey(here, "uid")
	add("pods", put(bus.Pods, pod), bus.ServiceSyncd)
	add("objects", put(bus.Objects, bus.ObjectKey("ns", "secret", "name.x")), bus.ServiceSyncd)
	add("status", put(bus.Status, pod), bus.ServiceSyncd)
	add("volumes", put(bus.Volumes, pod), bus.ServiceVolumed)
	add("probes", put(bus.Probes, bus.ProbeKey(here, "uid", "c", "liveness")), bus.ServiceProber)
	add("evictions", put(bus.Evictions, pod), bus.ServiceEvictd)
	for _, c := range []string{bus.ConditionMemoryPressure, bus.ConditionDiskPressure, bus.ConditionPIDPressure} {
		add("conditions "+c, put(bus.Conditions, bus.ConditionKey(here, c)), bus.ServiceEvictd)
	}
	for _, c := range []string{bus.ConditionRuntimeReady, bus.ConditionNetworkReady} {
		add("conditions "+c, put(bus.Conditions, bus.ConditionKey(here, c)), bus.ServicePleg)
	}
	add("conditions of a type that nobody owns", put(bus.Conditions, bus.ConditionKey(here, "Ready")))
	add("pods of another node", put(bus.Pods, bus.PodKey(elsewhere, "uid")))
	add("status of another node", put(bus.Status, bus.PodKey(elsewhere, "uid")))
	for _, s := range bus.AllServices() {
		add("registration of "+s, put(bus.Services, bus.ServiceKey(s, here, "1")), s)
		add("registration elsewhere of "+s, put(bus.Services, bus.ServiceKey(s, elsewhere, "1")))
	}
	add("lifecycle", publish(bus.Lifecycle, bus.LifecycleSubject(here, "uid", "ContainerDied")), bus.ServicePleg)
	add("lifecycle of another node", publish(bus.Lifecycle, bus.LifecycleSubject(elsewhere, "uid", "ContainerDied")))
	add("events", publish(bus.Events, bus.EventSubject(here, "uid", "Killing")), bus.AllServices()...)
	add("decisions", publish(bus.Decisions, bus.DecisionsSubject(here, "uid", "ns", "web.x")), bus.ServiceSyncd)
	add("decisions of another node", publish(bus.Decisions, bus.DecisionsSubject(elsewhere, "uid", "ns", "web")))
	add("events of another node", publish(bus.Events, bus.EventSubject(elsewhere, "uid", "Killing")))
	return list
}

func put[T proto.Message](spec bus.BucketSpec[T], key string) func(context.Context, *bus.Conn) error {
	return func(ctx context.Context, c *bus.Conn) error {
		b := bus.Unchecked(c, spec)
		if _, err := b.Put(ctx, key, spec.New()); err != nil {
			return err
		}
		return b.Delete(ctx, key)
	}
}

func publish(spec bus.StreamSpec, subject string) func(context.Context, *bus.Conn) error {
	return func(ctx context.Context, c *bus.Conn) error {
		_, _, err := bus.UncheckedStream(c, spec).Publish(ctx, bus.Message{Subject: subject, Data: []byte("x")})
		return err
	}
}

// reads tries every way to read a bucket.
func reads[T proto.Message](spec bus.BucketSpec[T]) (string, []string, func(context.Context, *bus.Conn) error) {
	return spec.Name, spec.Readers, func(ctx context.Context, c *bus.Conn) error {
		b, err := bus.Open(ctx, c, spec)
		if err != nil {
			return err
		}
		if _, err := b.List(ctx, ">"); err != nil {
			return err
		}
		if _, err := b.Get(ctx, "absent.key"); !fault.Is(err, fault.NotFound) {
			return fmt.Errorf("get: %w", err)
		}
		watching, stop := context.WithCancel(ctx)
		defer stop()
		if err := b.Watch(watching, ">", bus.Handler[T]{Apply: func(bus.Entry[T]) {}, Synced: stop}); watching.Err() == nil {
			return fmt.Errorf("watch: %w", err)
		}
		return nil
	}
}

func securedBus(t *testing.T) map[string]account {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	dir := filepath.Join(t.TempDir(), "keys")
	users, err := embedded.ServiceUsers(dir, here)
	if err != nil {
		t.Fatal(err)
	}
	s, err := embedded.Start(ctx, embedded.Options{InMemory: true, Users: users})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	tcp := overTCP{s.ClientURL()}
	accounts := map[string]account{}
	for _, service := range append(bus.AllServices(), bus.ServiceCLI) {
		accounts[service] = account{service, tcp.Connect(t, bus.Config{
			Service: service, Node: here, Instance: "1", NKeySeedFile: embedded.SeedFile(dir, service),
		})}
	}
	for what, cfg := range map[string]bus.Config{
		"no key":      {URL: s.ClientURL(), Service: bus.ServiceSyncd},
		"unknown key": {URL: s.ClientURL(), Service: bus.ServiceSyncd, NKeySeedFile: strangerSeed(t)},
	} {
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		if _, err := bus.Connect(short, cfg); !fault.Is(err, fault.Unavailable) {
			t.Errorf("connected with %s: %v", what, err)
		}
		cancel()
	}
	return accounts
}

func strangerSeed(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := embedded.ServiceUsers(dir, ""); err != nil {
		t.Fatal(err)
	}
	return embedded.SeedFile(dir, bus.ServiceSyncd)
}

// TestPermissions has each service do all its own work under its permissions,
// and be refused every other write.
func TestPermissions(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	accounts := securedBus(t)

	// Nobody but the services makes the buckets and streams.
	var wg sync.WaitGroup
	for _, a := range accounts {
		wg.Go(func() { readAll(t, ctx, a) })
	}
	wg.Wait()

	table := map[string][]string{}
	var mu sync.Mutex
	for _, a := range accounts {
		wg.Go(func() {
			for _, act := range acts() {
				err := act.do(ctx, a.c)
				if allowed := slices.Contains(act.writers, a.service); allowed && err != nil {
					t.Errorf("%s may not write %s: %v", a.service, act.what, err)
				} else if !allowed && !fault.Is(err, fault.PermissionDenied) {
					t.Errorf("%s writes %s: %v", a.service, act.what, err)
				}
				if err == nil {
					mu.Lock()
					table[act.what] = append(table[act.what], a.service)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	for _, what := range slices.Sorted(maps.Keys(table)) {
		slices.Sort(table[what])
		t.Logf("%-40s %s", what, strings.Join(table[what], " "))
	}
}

func readAll(t *testing.T, ctx context.Context, a account) {
	try := func(name string, readers []string, read func(context.Context, *bus.Conn) error) {
		err := read(ctx, a.c)
		if allowed := slices.Contains(readers, a.service); allowed && err != nil {
			t.Errorf("%s reads %s: %v", a.service, name, err)
		} else if !allowed && !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("%s reads %s, which is not declared: %v", a.service, name, err)
		}
	}
	try(reads(bus.Pods))
	try(reads(bus.Objects))
	try(reads(bus.Status))
	try(reads(bus.Volumes))
	try(reads(bus.Probes))
	try(reads(bus.Conditions))
	try(reads(bus.Evictions))
	try(reads(bus.Services))
	for _, spec := range []bus.StreamSpec{bus.Lifecycle, bus.Events, bus.Decisions} {
		try(spec.Name, spec.Readers, func(ctx context.Context, c *bus.Conn) error {
			s, err := bus.OpenStream(ctx, c, spec)
			if err != nil {
				return err
			}
			return s.Read(ctx, bus.ReadFrom{}, func(context.Context, bus.Message) error { return nil })
		})
	}
	if a.service == bus.ServiceCLI {
		return
	}
	r, err := a.c.Register(ctx, &podplanev1.ServiceRecord{})
	if err != nil {
		t.Errorf("%s does not register: %v", a.service, err)
		return
	}
	if err := r.Close(ctx); err != nil {
		t.Errorf("%s does not take its registration back: %v", a.service, err)
	}
}

// TestPermissionsAreNarrow looks at what is generated for what must never be in it.
func TestPermissionsAreNarrow(t *testing.T) {
	seen := map[string]string{}
	for _, service := range append(bus.AllServices(), bus.ServiceCLI) {
		publish, subscribe := bus.Permissions(service)
		// Beside its answers a service hears of traces with an error, and nothing else.
		hears := []string{"_INBOX." + service + ".>", "traces.v1.failed.*.*"}
		switch service {
		case bus.ServiceCLI:
			hears = hears[:1]
		case bus.ServiceGateway:
			hears[1] = "traces.v1.failed.>"
		}
		if len(publish) == 0 || !slices.Equal(subscribe, hears) {
			t.Errorf("%s: publish %v, subscribe %v", service, publish, subscribe)
		}
		for _, p := range publish {
			if p == ">" || strings.HasPrefix(p, "*") || strings.Contains(p, "STREAM.DELETE") || strings.Contains(p, "STREAM.PURGE") ||
				p == "$KV.>" || p == "$JS.>" || strings.HasPrefix(p, "$JS.API.>") || strings.HasPrefix(p, "$SYS") || strings.ContainsAny(p, "{}") {
				t.Errorf("%s may publish %s", service, p)
			}
			if !strings.HasPrefix(p, "$KV.") {
				continue
			}
			if other, taken := seen[p]; taken {
				t.Errorf("both %s and %s write %s", other, service, p)
			}
			seen[p] = service
		}
	}
	if p, _ := bus.Permissions("stranger"); len(p) != 0 {
		t.Errorf("an unknown service may publish %v", p)
	}
	everywhere, _ := bus.Permissions(bus.ServiceSyncd)
	onNode, _ := bus.PermissionsOn(bus.ServiceSyncd, here)
	_, hearsOnNode := bus.PermissionsOn(bus.ServiceSyncd, here)
	if want := []string{"_INBOX.syncd.>", "traces.v1.failed.node=2Ea.*", "traces.v1.failed.*.gateway"}; !slices.Equal(hearsOnNode, want) {
		t.Errorf("syncd on one node hears %v, want %v", hearsOnNode, want)
	}
	if !slices.Contains(everywhere, "$KV.pods.*.>") || !slices.Contains(onNode, "$KV.pods.node=2Ea.>") {
		t.Errorf("pods of every node: %v, of one: %v", everywhere, onNode)
	}
}

// TestServiceUsersKeepsKeys makes keys once, for nobody else to read.
func TestServiceUsersKeepsKeys(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run", "keys")
	first, err := embedded.ServiceUsers(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	again, err := embedded.ServiceUsers(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	for i := range first {
		if first[i].PublicKey != again[i].PublicKey {
			t.Error("a key changed")
		}
	}
	for _, s := range append(bus.AllServices(), bus.ServiceCLI, embedded.AdminKey) {
		info, err := os.Stat(embedded.SeedFile(dir, s))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("seed of %s: %v %v", s, info, err)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v %v", info, err)
	}
	if err := os.WriteFile(embedded.SeedFile(dir, bus.ServiceSyncd), []byte("no seed"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := embedded.ServiceUsers(dir, ""); !fault.Is(err, fault.Invalid) {
		t.Errorf("a broken seed: %v", err)
	}
}
