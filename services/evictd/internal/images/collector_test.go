package images_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/cri/crifake"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/services/evictd/internal/images"
	"github.com/podplane/podplane/services/evictd/internal/policy"
)

type world struct {
	*crifake.Runtime
	mu       sync.Mutex
	usage    policy.Observation
	known    bool
	failures []string
	where    string
	whereErr error
}

func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *world) present(t *testing.T) []string {
	t.Helper()
	list, err := w.ListImages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, i := range list {
		names = append(names, i.RepoTags...)
	}
	slices.Sort(names)
	return names
}

// bubble runs a collector in virtual time. The image of another node's container and that of a desired pod are in use.
func bubble(t *testing.T, f func(*testing.T, *world, *images.Collector), change ...func(*images.Options)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{Runtime: crifake.New(crifake.Options{Node: "n"}).For(""), known: true}
		w.usage = policy.Observation{Signal: policy.ImagefsAvailable, Available: 900, Capacity: 1000}
		for _, name := range []string{"used", "desired", "old", "idle"} {
			w.AddImage("example.test/" + name + ":1")
		}
		other := w.For("other")
		config := &cri.SandboxConfig{Name: "a", Namespace: "b", UID: "u"}
		sandbox, err := other.RunSandbox(t.Context(), config)
		if err == nil {
			_, err = other.CreateContainer(t.Context(), sandbox, &cri.ContainerConfig{Name: "c", Image: cri.ImageSpec{Image: "example.test/used:1"}}, config)
		}
		if err != nil {
			t.Fatal(err)
		}
		options := images.Options{
			High: 85, Low: 80, MinAge: 2 * time.Minute, Period: 5 * time.Minute, Log: slog.New(slog.DiscardHandler),
			Desired: func() ([]string, bool) {
				w.mu.Lock()
				defer w.mu.Unlock()
				return []string{"example.test/desired:1", "example.test/not-there:1"}, w.known
			},
			Usage: func() policy.Observation {
				w.mu.Lock()
				defer w.mu.Unlock()
				return w.usage
			},
			OnFilesystem: func(path string, err error) { w.set(func() { w.where, w.whereErr = path, err }) },
			OnFailure:    func(reason string, _ error) { w.set(func() { w.failures = append(w.failures, reason) }) },
		}
		for _, f := range change {
			f(&options)
		}
		c := images.New(w, options)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		synctest.Wait()
		f(t, w, c)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func sleep(d time.Duration) { time.Sleep(d); synctest.Wait() }

func TestUnusedGoWhenAsked(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, c *images.Collector) {
		if freed, err := c.DeleteUnused(t.Context()); freed != 0 || err != nil {
			t.Errorf("young images went: %d, %v", freed, err)
		}
		sleep(3 * time.Minute)
		w.set(func() { w.known = false })
		if _, err := c.DeleteUnused(t.Context()); err != nil || len(w.present(t)) != 4 {
			t.Errorf("removed before the desired pods are known: %v, %v", w.present(t), err)
		}
		w.set(func() { w.known = true })
		if _, err := c.DeleteUnused(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := w.present(t); !slices.Equal(got, []string{"example.test/desired:1", "example.test/used:1"}) {
			t.Errorf("left: %v", got)
		}
	})
}

func TestByUseOfDisk(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, _ *images.Collector) {
		w.set(func() {
			if w.where != "/var/lib/crifake" || w.whereErr != nil {
				t.Errorf("images are at %q, %v", w.where, w.whereErr)
			}
		})
		sleep(11 * time.Minute)
		if n := len(w.present(t)); n != 4 {
			t.Errorf("%d images below the high mark", n)
		}
		w.set(func() { w.usage.Available = 149 })
		sleep(5 * time.Minute)
		if n := len(w.present(t)); n >= 4 || n < 2 {
			t.Errorf("above the high mark: %v", w.present(t))
		}
		w.set(func() { w.usage.Available = 0 })
		w.SetImageFsInfo(cri.ImageFsInfo{Images: []cri.FilesystemUsage{{Mountpoint: "/elsewhere"}}})
		sleep(10 * time.Minute)
		w.mu.Lock()
		defer w.mu.Unlock()
		if !slices.Contains(w.failures, images.ReasonFreeDiskSpaceFailed) || w.where != "/elsewhere" {
			t.Errorf("failures %v, images at %q", w.failures, w.where)
		}
	})
}

func TestRuntimeAway(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, c *images.Collector) {
		w.SetDown(true)
		if _, err := c.DeleteUnused(t.Context()); !fault.Is(err, fault.Unavailable) {
			t.Errorf("got %v", err)
		}
		sleep(6 * time.Minute)
		w.set(func() {
			if !slices.Equal(w.failures, []string{images.ReasonImageGCFailed}) || w.whereErr == nil {
				t.Errorf("failures %v, %v", w.failures, w.whereErr)
			}
		})
		w.SetDown(false)
		sleep(2 * time.Minute)
		w.set(func() {
			if w.whereErr != nil {
				t.Errorf("after its return: %v", w.whereErr)
			}
		})
	})
}

func TestByAge(t *testing.T) {
	registry := prometheus.NewRegistry()
	bubble(t, func(t *testing.T, w *world, _ *images.Collector) {
		sleep(55 * time.Minute)
		w.AddImage("example.test/late:1")
		sleep(4 * time.Minute)
		if n := len(w.present(t)); n != 5 {
			t.Errorf("%d images before their time", n)
		}
		sleep(6 * time.Minute)
		if got := w.present(t); !slices.Equal(got, []string{"example.test/desired:1", "example.test/late:1", "example.test/used:1"}) {
			t.Errorf("left: %v", got)
		}
		families, err := registry.Gather()
		if err != nil || len(families) != 1 {
			t.Fatalf("metrics: %v, %v", families, err)
		}
		for _, m := range families[0].GetMetric() {
			want := map[string]float64{"age": 2, "space": 0}[m.GetLabel()[0].GetValue()]
			if got := m.GetCounter().GetValue(); got != want {
				t.Errorf("%v: want %v", m, want)
			}
		}
	}, func(o *images.Options) { o.MaxAge, o.High, o.Registry = time.Hour, 100, registry })
}

func TestInvalidCapacity(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, _ *images.Collector) {
		w.set(func() { w.usage = policy.Observation{Signal: policy.ImagefsAvailable} })
		sleep(6 * time.Minute)
		w.set(func() {
			if !slices.Contains(w.failures, images.ReasonInvalidDiskCapacity) {
				t.Errorf("failures %v", w.failures)
			}
		})
		if n := len(w.present(t)); n != 4 {
			t.Errorf("%d images are left", n)
		}
	})
}
