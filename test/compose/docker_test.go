//go:build compose

package compose_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Where the compose file publishes its ports, in the network namespace of the test.
const (
	gateway    = "http://127.0.0.1:8080"
	jaeger     = "http://127.0.0.1:16686"
	prometheus = "http://127.0.0.1:9090"
)

// container is what docker inspect tells.
type container struct {
	Name  string
	State struct {
		Pid    int
		Health struct{ Status string }
	}
	Config struct {
		User   string
		Labels map[string]string
	}
	NetworkSettings struct {
		Networks map[string]struct{ IPAddress string }
	}
	HostConfig struct {
		Privileged, ReadonlyRootfs bool
		Memory                     int64
		LogConfig                  struct{ Config map[string]string }
		PortBindings               map[string][]struct{ HostIP string }
	}
}

func (c container) service() string { return c.Config.Labels["com.docker.compose.service"] }

// ip is the container's address in the network of the deployment; empty if it shares another one's.
func (c container) ip() string {
	for _, n := range c.NetworkSettings.Networks {
		return n.IPAddress
	}
	return ""
}

// compose calls Docker Compose on the files as they are.
func compose(ctx context.Context, args ...string) (string, error) {
	return composeWith(ctx, nil, args...)
}

// composeWith is compose with more settings.
func composeWith(ctx context.Context, env []string, args ...string) (string, error) {
	return run(ctx, env, "/usr/bin/docker", append([]string{"compose", "-f", "../../deploy/compose.yaml"}, args...)...)
}

func docker(ctx context.Context, args ...string) (string, error) {
	return run(ctx, nil, "/usr/bin/docker", args...)
}

func run(ctx context.Context, env []string, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w:\n%s%s", strings.Join(args, " "), err, out, stderr.String())
	}
	return string(out), nil
}

// stderr is what a command that failed said.
func stderr(err error) string {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(exit.Stderr)
	}
	return ""
}

func must(t *testing.T) func(string, error) {
	return func(_ string, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
}

func logs() string {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	out, err := compose(ctx, "logs", "--tail", "30", "--no-color")
	return fmt.Sprint(out, err)
}

func inspect(ctx context.Context, t *testing.T) []container {
	t.Helper()
	ids, err := docker(ctx, "ps", "-aq")
	if err != nil {
		t.Fatal(err)
	}
	out, err := docker(ctx, append([]string{"inspect"}, strings.Fields(ids)...)...)
	if err != nil {
		t.Fatal(err)
	}
	var list []container
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatal(err)
	}
	return list
}

// address is the address of a service's container.
func address(ctx context.Context, t *testing.T, service string) string {
	t.Helper()
	for _, c := range inspect(ctx, t) {
		if c.service() == service && c.ip() != "" {
			return c.ip()
		}
	}
	t.Fatalf("%s has no address", service)
	return ""
}

// volume is where a named volume is on this host.
func volume(ctx context.Context, t *testing.T, name string) string {
	t.Helper()
	out, err := docker(ctx, "volume", "inspect", "--format", "{{.Mountpoint}}", "podplane_"+name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// podProcess is a process of a pod, which is in its network namespace.
func podProcess(t *testing.T) int {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, process := range all {
		// It may have ended since.
		name, nameErr := os.ReadFile(process + "/comm")
		cgroup, cgroupErr := os.ReadFile(process + "/cgroup")
		pid, err := strconv.Atoi(filepath.Base(process))
		if errors.Join(nameErr, cgroupErr, err) == nil && string(name) == "app\n" && strings.Contains(string(cgroup), os.Getenv("PODPLANE_CGROUP")+"/") {
			return pid
		}
	}
	t.Fatal("no pod runs")
	return 0
}

// left lists what is there of containers, volumes and networks, but for Docker's own.
func left(ctx context.Context, t *testing.T) []string {
	t.Helper()
	var all []string
	for kind, args := range map[string][]string{
		"container": {"ps", "-a", "--format", "{{.Names}}"}, "volume": {"volume", "ls", "--format", "{{.Name}}"},
		"network": {"network", "ls", "--filter", "type=custom", "--format", "{{.Name}}"},
	} {
		out, err := docker(ctx, args...)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range strings.Fields(out) {
			all = append(all, kind+" "+name)
		}
	}
	slices.Sort(all)
	return all
}

// request makes one request and returns the body of a good answer.
func request(ctx context.Context, method, url, body string) (string, error) {
	return requestAs(ctx, method, url, "", body)
}

func requestAs(ctx context.Context, method, url, contentType, body string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", contentType)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	if resp.StatusCode/100 != 2 {
		return "", fmt.Errorf("%s %s: %s: %s", method, url, resp.Status, content)
	}
	return string(content), nil
}
