package pleg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/bustest"
	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/cri/crifake"
	"github.com/podplane/podplane/internal/daemon"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

const node = "node-a"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs the service on the bus and the runtime until stop is called.
func start(t testing.TB, b *bustest.Bus, rt *crifake.Runtime) (stop func()) {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Node, cfg.Instance = node, "one"
	served := make(chan struct{})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	service := daemon.Service[Config]{
		Name: bus.ServicePleg, Defaults: DefaultConfig,
		Run: func(ctx context.Context, cfg Config, deps daemon.Deps) error { return run(ctx, cfg, deps, rt) },
	}
	go func() {
		done <- daemon.Run(ctx, service, cfg, daemon.Options{
			InProcess: b.Server(), Log: slog.New(slog.DiscardHandler), Addresses: func(string, string) { close(served) },
		})
	}()
	select {
	case <-served:
	case err := <-done:
		t.Fatalf("ended before it served: %v", err)
	case <-time.After(20 * time.Second):
		t.Fatal("does not serve")
	}
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

type world struct {
	t       testing.TB
	rt      *crifake.Runtime
	stream  *bus.Stream
	sandbox string
	config  *cri.SandboxConfig
}

func newWorld(t testing.TB, b *bustest.Bus) *world {
	t.Helper()
	w := &world{t: t, rt: crifake.New(crifake.Options{Node: node})}
	w.rt.AddImage("app")
	var err error
	if w.stream, err = bus.OpenStream(t.Context(), b.Connect(bus.ServiceSyncd, node), bus.Lifecycle); err != nil {
		t.Fatal(err)
	}
	w.config = &cri.SandboxConfig{Name: "web", Namespace: "default", UID: "u1"}
	if w.sandbox, err = w.rt.RunSandbox(t.Context(), w.config); err != nil {
		t.Fatal(err)
	}
	return w
}

// container makes and starts a container.
func (w *world) container(attempt uint32) string {
	w.t.Helper()
	id, err := w.rt.CreateContainer(w.t.Context(), w.sandbox, &cri.ContainerConfig{Name: "app", Attempt: attempt, Image: cri.ImageSpec{Image: "app"}}, w.config)
	if err == nil {
		err = w.rt.StartContainer(w.t.Context(), id)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return id
}

// journal reads until the journal has n events and returns them as "type object".
func (w *world) journal(n int) []string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	enough := errors.New("enough")
	var lines []string
	err := w.stream.Read(ctx, bus.ReadFrom{Follow: true}, func(_ context.Context, m bus.Message) error {
		lines = append(lines, m.Header["ce-type"]+" "+m.Header["ce-subject"])
		if len(lines) == n {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		w.t.Fatalf("%d of %d events: %v\n%v", len(lines), n, err, lines)
	}
	return lines
}

func line(eventType, id string) string { return "podplane.pleg.v1." + eventType + " " + id }

// TestRestarts: events come once and in order over replacements of pleg, also those of the time between.
func TestRestarts(t *testing.T) {
	b := bustest.New(t)
	w := newWorld(t, b)
	stop := start(t, b, w.rt)
	c0 := w.container(0)
	want := []string{line("PodSandboxStarted", w.sandbox), line("ContainerCreated", c0), line("ContainerStarted", c0)}
	w.journal(len(want))
	stop()
	w.rt.Exit(c0, 1, "Error")
	c1 := w.container(1)
	stop = start(t, b, w.rt)
	want = append(want, line("ContainerDied", c0), line("ContainerCreated", c1), line("ContainerStarted", c1))
	w.journal(len(want))
	stop()
	stop = start(t, b, w.rt)
	w.rt.Exit(c1, 0, "Completed")
	want = append(want, line("ContainerDied", c1))
	if got := w.journal(len(want)); !slices.Equal(got, want) {
		t.Errorf("journal:\n%v\nwant\n%v", got, want)
	}
	stop()
}

// TestConditions: both conditions are written, and follow the runtime away and back.
func TestConditions(t *testing.T) {
	b := bustest.New(t)
	w := newWorld(t, b)
	conditions, err := bus.Open(t.Context(), b.Connect(bus.ServiceSyncd, node), bus.Conditions)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	seen := make(chan string, 100)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		_ = conditions.Watch(ctx, bus.NodePattern(node), bus.Handler[*podplanev1.ConditionRecord]{Apply: func(e bus.Entry[*podplanev1.ConditionRecord]) {
			select {
			case seen <- e.Value.GetType() + "=" + e.Value.GetStatus():
			default:
			}
		}})
	}()
	await := func(want string) {
		t.Helper()
		for {
			select {
			case got := <-seen:
				if got == want {
					return
				}
			case <-ctx.Done():
				t.Fatalf("%s was not written", want)
			}
		}
	}
	stop := start(t, b, w.rt)
	await("RuntimeReady=True")
	w.rt.SetDown(true)
	await("RuntimeReady=False")
	w.rt.SetDown(false)
	await("RuntimeReady=True")
	stop()
	cancel()
	<-watched
}

func TestConfig(t *testing.T) {
	cfg := DefaultConfig()
	if list := cfg.Validate(nil); len(list) != 0 {
		t.Errorf("defaults: %v", list)
	}
	cfg.RelistPeriod, cfg.RelistFallbackPeriod, cfg.RuntimeHealthTimeout, cfg.JournalMaxAge, cfg.JournalMaxBytes = 1, 1, 1, 1, 1
	if list := cfg.Validate(nil); len(list) != 5 {
		t.Errorf("want each of the five named: %v", list)
	}
}

// BenchmarkExitToBus measures from a container's exit to the event in the hands of a subscriber.
func BenchmarkExitToBus(b *testing.B) {
	server := bustest.New(b)
	w := newWorld(b, server)
	stop := start(b, server, w.rt)
	defer stop()
	died := make(chan time.Time, 1)
	ctx, cancel := context.WithCancel(b.Context())
	reading := make(chan error, 1)
	go func() {
		reading <- w.stream.Read(ctx, bus.ReadFrom{Follow: true}, func(_ context.Context, m bus.Message) error {
			if m.Header["ce-type"] == "podplane.pleg.v1.ContainerDied" {
				died <- time.Now()
			}
			return nil
		})
	}()
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		c := w.container(uint32(i))
		b.StartTimer()
		began := time.Now()
		w.rt.Exit(c, 1, "Error")
		took = append(took, (<-died).Sub(began))
		b.StopTimer()
		if err := w.rt.RemoveContainer(b.Context(), c); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	cancel()
	if err := <-reading; !fault.Is(err, fault.Canceled) && err != nil {
		b.Fatal(err)
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	if testing.Verbose() {
		fmt.Println(len(took), "exits")
	}
}
