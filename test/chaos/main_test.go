// Package chaos_test kills syncd and pleg at random moments, also between two calls to the runtime, for minutes while pods of many kinds are created and deleted,
// and looks for whatever is not as it should be afterwards. It is a package of its own, so that its minutes pass beside those of other tests.
package chaos_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/testkit"
	"github.com/podplane/podplane/test/harness"
)

var (
	seed = flag.Uint64("seed", 0, "seed of what happens; 0 is the time")
	pods = flag.Int("pods", 200, "how many pods are created at least")
)

// forVariable says for how long services are killed.
const forVariable = "PODPLANE_CHAOS_FOR"

const (
	namespace = "chaos"
	// patience bounds each step that has to converge: many times what it takes, as the host is shared with other tests.
	patience = 2 * time.Minute
	// alive is how many pods there are at most at a time.
	alive = 30
	// killEvery is the mean pause between two kills from outside; at one of betweenCalls calls to the runtime the caller is killed as well.
	killEvery    = 6 * time.Second
	betweenCalls = 150
)

func TestMain(m *testing.M) { testkit.Main(m) }

// stage is the Podplane that is tested, and what is known of it.
type stage struct {
	*harness.Stack
	t      *testing.T
	node   *testkit.Node
	client *cri.Client
	cgroup string
	rand   *rand.Rand

	wanted map[string]*kind // the pods that there are to be, by name
	made   int
	ended  int
	kills  map[string]*atomic.Int32
	killMu sync.Mutex
	// shims and records of sandboxes that containerd kept when it was last looked for them.
	shims, records int
}

func newStage(t *testing.T, r *rand.Rand) (*stage, *testkit.CRIProxy) {
	t.Helper()
	node := testkit.Containerd(t)
	proxy := testkit.NewCRIProxy(t, node.Endpoint)
	name := "chaos"
	s := &stage{t: t, node: node, rand: r, cgroup: filepath.Join(node.CgroupParent, name), wanted: make(map[string]*kind), kills: make(map[string]*atomic.Int32)}
	for _, what := range []string{"syncd", "pleg", "between two calls"} {
		s.kills[what] = new(atomic.Int32)
	}
	var err error
	s.Stack, err = harness.New(harness.Options{
		CRIEndpoint: proxy.Endpoint, Node: name, Root: filepath.Join(node.Dir, name), CgroupRoot: s.cgroup,
		Env: []string{"PODPLANE_SYNCD_MAX_RESTART_DELAY=3s"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if s.client, err = cri.Dial(ctx, node.Endpoint, cri.Options{Node: name}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.client.Close() })
	return s, proxy
}

// duration is for how long services are killed.
func duration(t *testing.T) time.Duration {
	text := os.Getenv(forVariable)
	if text == "" {
		return 5 * time.Minute
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", forVariable, err)
	}
	return d
}

// accepted repeats a call that met a service that was just killed until it is answered in one of the wanted ways.
func (s *stage) accepted(ctx context.Context, method, path, body string, want ...int) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		a, err := s.Call(ctx, method, path, "application/yaml", []byte(body))
		if err == nil {
			for _, code := range want {
				if a.Code == code {
					return nil
				}
			}
			if a.Code != http.StatusServiceUnavailable && a.Code != http.StatusGatewayTimeout {
				return fmt.Errorf("%s %s: %d: %s", method, path, a.Code, a.Body)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s %s was never accepted: %w (last: %d %s %v)", method, path, ctx.Err(), a.Code, a.Body, err)
		case <-tick.C:
		}
	}
}

// kill ends a service with SIGKILL; one that is just being started again is left alone.
func (s *stage) kill(service, how string) {
	s.killMu.Lock()
	defer s.killMu.Unlock()
	err := s.Kill(service)
	if err == nil {
		s.kills[how].Add(1)
	} else if !errors.Is(err, os.ErrProcessDone) && !errors.Is(err, os.ErrNotExist) {
		s.t.Errorf("kill %s: %v", service, err)
	}
}

// goroutines are how many each service has.
func (s *stage) goroutines(ctx context.Context) (map[string]int, error) {
	a, err := s.Want(ctx, http.StatusOK, http.MethodGet, "/podplane/v1/services", "", nil)
	if err != nil {
		return nil, err
	}
	var list struct {
		Services []struct {
			Service, HTTPAddress string
			Ready                bool
		}
	}
	if err := json.Unmarshal(a.Body, &list); err != nil {
		return nil, fmt.Errorf("decode %s: %w", a.Body, err)
	}
	count := make(map[string]int)
	for _, x := range list.Services {
		if !x.Ready {
			return nil, fmt.Errorf("%s is not ready", x.Service)
		}
		if count[x.Service], err = goroutinesAt(ctx, x.HTTPAddress); err != nil {
			return nil, err
		}
	}
	for _, name := range harness.Services {
		if count[name] == 0 {
			return nil, fmt.Errorf("%s is not registered", name)
		}
	}
	return count, nil
}

func goroutinesAt(ctx context.Context, address string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	return readGauge(resp.Body, "go_goroutines")
}

// eventually waits until f finds nothing wrong. What stays wrong is told with what the pod waits for.
func (s *stage) eventually(ctx context.Context, what string, f func(context.Context) error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	var err error
	for {
		now := f(ctx)
		if now == nil {
			return
		}
		if end, _ := ctx.Deadline(); err == nil || time.Until(end) > time.Second {
			err = now // what comes of the end of the time itself says nothing
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			var about podError
			explained := ""
			if errors.As(err, &about) {
				explained = s.Explain(ctx, namespace, about.name)
			}
			s.t.Fatalf("%s: %v\n%s\n%s", what, err, explained, s.Logs())
		}
	}
}

// podError is what is wrong with a pod.
type podError struct{ name, message string }

func (e podError) Error() string { return "pod " + e.name + ": " + e.message }

func wrong(name, format string, args ...any) error {
	return podError{name, fmt.Sprintf(format, args...)}
}

func podPath(name string) string {
	path := "/api/v1/namespaces/" + namespace + "/pods"
	if name != "" {
		path += "/" + name
	}
	return path
}

func manifest(name, spec string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec:" + strings.ReplaceAll(spec, "$IMAGE", testkit.App)
}
