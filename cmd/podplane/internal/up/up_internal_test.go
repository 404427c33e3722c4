package up

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podplane/podplane/cmd/podplane/internal/rest"
)

func TestValidateNamesTheFlag(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"defaults", func(*Config) {}, ""},
		{"no node", func(c *Config) { c.Node = "" }, "--node"},
		{"relative root", func(c *Config) { c.Root = "lib" }, "--root"},
		{"relative run directory", func(c *Config) { c.RunDir = "run" }, "--run-dir"},
		{"relative manifests", func(c *Config) { c.ManifestDir = "m" }, "--manifest-dir"},
		{"no manifests", func(c *Config) { c.ManifestDir = "" }, ""},
		{"no port", func(c *Config) { c.Listen = "127.0.0.1" }, "--listen"},
		{"runtime over TCP", func(c *Config) { c.CRIEndpoint = "tcp://127.0.0.1:1" }, "--cri-endpoint"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := Default()
			c.CRIEndpoint = ""
			tc.change(&c)
			err := c.Validate()
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("Validate() = %v, want %q", err, tc.want)
			}
		})
	}
}

func TestPortsAreFilledInOnce(t *testing.T) {
	c := Config{Listen: "127.0.0.1:0", NATSListen: "127.0.0.1:0"}
	c, err := c.withPorts()
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasSuffix(c.Listen, ":0") || strings.HasSuffix(c.NATSListen, ":0") || c.Listen == c.NATSListen {
		t.Errorf("ports: %s, %s", c.Listen, c.NATSListen)
	}
	again, err := c.withPorts()
	if err != nil || again.Listen != c.Listen || again.NATSListen != c.NATSListen {
		t.Errorf("withPorts changed %+v to %+v, %v", c, again, err)
	}
}

func TestNotReadyCountsOnlyTheRunningChildren(t *testing.T) {
	pids := map[string]string{}
	var all []rest.Service
	processes := processesOf(map[string]int{"prober": 3})
	if len(processes) != len(Services)+2 {
		t.Errorf("three of prober: %v", processes)
	}
	for i, p := range processes {
		pid := string(rune('1' + i))
		pids[p.name] = pid
		all = append(all, rest.Service{Node: "n", Service: p.service, PID: pid, Ready: true})
	}
	if got := notReady("n", all, processes, pids); got != "" {
		t.Errorf("all ready, but: %s", got)
	}
	old := append([]rest.Service{}, all...)
	old[1].PID = "99"
	if got := notReady("n", old, processes, pids); got != "pleg: not registered yet" {
		t.Errorf("with the registration of an ended pleg: %q", got)
	}
	old = append(old, rest.Service{Node: "n", Service: "pleg", PID: pids["pleg"], Message: "runtime: away"})
	if got := notReady("n", old, processes, pids); got != "pleg: runtime: away" {
		t.Errorf("with a pleg that says why: %q", got)
	}
}

func TestOneUpPerRunDirectory(t *testing.T) {
	dir := t.TempDir()
	if up, err := held(dir); err != nil || up {
		t.Fatalf("held before anybody took it: %v, %v", up, err)
	}
	l, err := acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := acquire(dir); err == nil || !strings.Contains(err.Error(), "podplane down") {
		t.Errorf("a second up: %v, want an error that says what to do", err)
	}
	if up, err := held(dir); err != nil || !up || holder(dir) != os.Getpid() {
		t.Errorf("held = %v, %v, by %d", up, err, holder(dir))
	}
	l.release()
	if up, err := held(dir); err != nil || up {
		t.Errorf("held after the release: %v, %v", up, err)
	}
	if was, err := stopRunning(t.Context(), filepath.Join(dir, "nowhere")); err != nil || was {
		t.Errorf("stopRunning where nothing runs: %v, %v", was, err)
	}
}

func TestReplicasAreValidated(t *testing.T) {
	for _, tc := range []struct {
		replicas map[string]int
		want     string
	}{
		{map[string]int{"prober": 3, "syncd": 2, "gateway": 1}, ""},
		{map[string]int{"probe": 2}, "no such service"},
		{map[string]int{"gateway": 2}, "one address has one gateway"},
		{map[string]int{"pleg": 0}, "want 1 to"},
		{map[string]int{"pleg": 17}, "want 1 to"},
	} {
		c := Default()
		c.Replicas = tc.replicas
		err := c.Validate()
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%v: %v, want %q", tc.replicas, err, tc.want)
		}
	}
}
