//go:build compose

package compose_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/shard"
	"github.com/podplane/podplane/internal/testkit"
)

// portRange is what gateway's replicas share.
const portRange = "8080-8089"

// shards are those that the replicas of a service divide.
var shards = map[string]int{"syncd": shard.Count, "prober": shard.Count, "volumed": shard.Count, "pleg": 1, "evictd": 1, "gateway": 0}

// scale says how many replicas of a service there are.
type scale map[string]int

func (s scale) args() []string {
	args := []string{"up", "-d", "--no-build"}
	for _, service := range services() {
		args = append(args, "--scale", fmt.Sprintf("%s=%d", service, max(s[service], 1)))
	}
	return args
}

// wide is the scale of the README of this deployment.
var wide = scale{"prober": 3, "syncd": 2, "volumed": 2, "pleg": 2, "evictd": 2, "gateway": 2}

// replica is one that is registered.
type replica struct {
	Service, Instance, Version, GRPCAddress, HTTPAddress string
	Ready                                                bool
	Shards                                               []int
}

func replicas(ctx context.Context) ([]replica, error) {
	code, body, err := ask(ctx, http.MethodGet, "/podplane/v1/services", "")
	if err != nil || code != http.StatusOK {
		return nil, fmt.Errorf("list services: %d: %s: %w", code, body, err)
	}
	var list struct{ Services []replica }
	return list.Services, json.Unmarshal([]byte(body), &list)
}

func replicasOf(ctx context.Context, t *testing.T, service string) (list []replica) {
	t.Helper()
	testkit.Eventually(ctx, t, "replicas of "+service+" are registered", func(ctx context.Context) error {
		all, err := replicas(ctx)
		list = slices.DeleteFunc(all, func(r replica) bool { return r.Service != service })
		if err == nil && len(list) == 0 {
			err = errors.New("none")
		}
		return err
	})
	return list
}

// spread waits until so many replicas of each service are registered and ready and divide its shards fairly.
func spread(ctx context.Context, t *testing.T, want scale) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	testkit.Eventually(ctx, t, fmt.Sprintf("the shards are spread over %v", want), func(ctx context.Context) error {
		list, err := replicas(ctx)
		if err != nil {
			return err
		}
		for _, service := range services() {
			if err := spreadOf(list, service, max(want[service], 1)); err != nil {
				return err
			}
		}
		return nil
	})
}

func spreadOf(list []replica, service string, n int) error {
	count := shards[service]
	var held []int
	found := 0
	for _, r := range list {
		if r.Service != service {
			continue
		}
		found++
		held = append(held, r.Shards...)
		if !r.Ready || len(r.Shards) < count/n || len(r.Shards) > (count+n-1)/n {
			return fmt.Errorf("%s %s (ready: %v) has the shards %v, want %d to %d", service, r.Instance, r.Ready, r.Shards, count/n, (count+n-1)/n)
		}
	}
	slices.Sort(held)
	if found != n || len(held) != count || len(slices.Compact(held)) != count {
		return fmt.Errorf("%d replicas of %s, want %d, have the shards %v", found, service, n, held)
	}
	return nil
}

// steady are pods that must not notice anything: their containers, by pod.
type steady map[string]string

func startSteady(ctx context.Context, t *testing.T, count int) steady {
	t.Helper()
	pods := steady{}
	for i := range count {
		name := fmt.Sprintf("steady-%d", i)
		code, body, err := ask(ctx, http.MethodPost, podsPath, fmt.Sprintf(loadPod, name))
		if err != nil || code != http.StatusCreated {
			t.Fatalf("create %s: %d: %s: %v", name, code, body, err)
		}
		testkit.Eventually(ctx, t, name+" is ready", func(ctx context.Context) error {
			p, err := lookAt(ctx, name)
			if err != nil || p == nil {
				return fmt.Errorf("%v: %w", p, err)
			}
			if err := isReady(p); err != nil {
				return err
			}
			pods[name] = p.Status.ContainerStatuses[0].ContainerID
			return nil
		})
	}
	return pods
}

// unharmed sees that the pods are ready with the containers that they had.
func (s steady) unharmed(ctx context.Context, t *testing.T) {
	t.Helper()
	for name, container := range s {
		testkit.Eventually(ctx, t, name+" is ready", func(ctx context.Context) error {
			p, err := lookAt(ctx, name)
			if err != nil {
				return err
			}
			if p == nil {
				t.Fatalf("%s is lost", name)
			}
			if c := p.Status.ContainerStatuses[0]; c.ContainerID != container || c.RestartCount != 0 {
				t.Fatalf("%s runs in %s (%d restarts), was in %s", name, c.ContainerID, c.RestartCount, container)
			}
			return isReady(p)
		})
	}
}

func (s steady) remove(ctx context.Context, t *testing.T) {
	t.Helper()
	for name := range s {
		testkit.Eventually(ctx, t, name+" is gone", func(ctx context.Context) error {
			code, body, err := ask(ctx, http.MethodDelete, podsPath+"/"+name, "")
			if code == http.StatusNotFound {
				return nil
			}
			return fmt.Errorf("%d: %s: %w", code, body, err)
		})
	}
}

// testScale scales every service up and down while pods are created and deleted.
func testScale(ctx context.Context, t *testing.T) {
	t.Setenv("PODPLANE_PORT", portRange)
	must(t)(compose(ctx, scale{}.args()...))
	spread(ctx, t, scale{})
	pods := startSteady(ctx, t, 3)
	load := startLoad(ctx, t, "scaled")
	widths := []scale{wide, {"syncd": 3, "volumed": 1, "prober": 2, "gateway": 2}, wide, {}}
	for i := 0; i < len(widths)-1 || i%len(widths) != len(widths)-1 || load.lives.Load() < 20; i++ {
		s := widths[i%len(widths)]
		began := time.Now()
		must(t)(compose(ctx, s.args()...))
		spread(ctx, t, s)
		t.Logf("%v after %s", s, time.Since(began).Round(100*time.Millisecond))
	}
	out, err := compose(ctx, "exec", "-T", "gateway", "/podplane", "services")
	if err != nil || strings.Count(out, "leads") != 2 || strings.Count(out, "8/16") != 4 || strings.Count(out, "\nprober ") != 3 {
		t.Errorf("podplane services printed, %v:\n%s", err, out)
	}
	testPause(ctx, t)
	load.finish(ctx, t, 30)
	pods.unharmed(ctx, t)
	must(t)(compose(ctx, scale{}.args()...))
	spread(ctx, t, scale{})
	pods.unharmed(ctx, t)
	pods.remove(ctx, t)
}

// testPause stops a replica of every service that divides shards past its lease, and lets it go on. The load's pods, whose containers
// must be started once, show that it does nothing to its former shards.
func testPause(ctx context.Context, t *testing.T) {
	list, err := replicas(ctx)
	if err != nil {
		t.Fatal(err)
	}
	left := scale{}
	var paused []string
	for service, n := range wide {
		left[service] = n
		if shards[service] == 0 {
			continue
		}
		i := slices.IndexFunc(list, func(r replica) bool { return r.Service == service && len(r.Shards) > 0 })
		paused = append(paused, containerOf(ctx, t, list[i]))
		left[service]--
	}
	must(t)(docker(ctx, append([]string{"pause"}, paused...)...))
	t.Cleanup(func() { _, _ = docker(context.WithoutCancel(ctx), append([]string{"unpause"}, paused...)...) }) // they run, unless this failed
	began := time.Now()
	spread(ctx, t, left)
	t.Logf("the others have the shards of %d paused replicas after %s", len(paused), time.Since(began).Round(100*time.Millisecond))
	must(t)(docker(ctx, append([]string{"unpause"}, paused...)...))
	spread(ctx, t, wide)
}

// containerOf is the container of a replica. Those that share a network namespace are told apart by their ports.
func containerOf(ctx context.Context, t *testing.T, r replica) string {
	t.Helper()
	host, port, err := net.SplitHostPort(r.HTTPAddress)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range inspect(ctx, t) {
		if c.service() != r.Service || c.State.Pid == 0 {
			continue
		}
		if c.ip() == host {
			return c.Name
		}
		told, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/tmp/address", c.State.Pid))
		if err == nil && strings.HasSuffix(strings.TrimSpace(string(told)), ":"+port) {
			return c.Name
		}
	}
	t.Fatalf("no container is %+v", r)
	return ""
}
