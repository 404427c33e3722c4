package testkit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/hostruntime"
	"github.com/podplane/podplane/internal/image"
)

// App and Busybox are the names under which each node has the test images without pulling. The registry has them too, as app:1 and
// busybox:1.
const (
	App     = "podplane.local/app:1"
	Busybox = "podplane.local/busybox:1"
)

// LocalVariable names the environment variable that says where `make runtime images` built, instead of .local beside go.work.
const LocalVariable = "PODPLANE_LOCAL"

// Node is a containerd of a test's own, with its registry.
type Node struct {
	// Dir is removed with everything that is mounted in it and all processes that have a path in it among their arguments: a place
	// for the directories of whatever the test runs beside containerd.
	Dir string
	// Endpoint is the CRI endpoint.
	Endpoint string
	// CgroupParent is a cgroup to put sandboxes in, and is removed with what is below it.
	CgroupParent string
	// Registry has the images app:1 and busybox:1.
	Registry *Registry
	// Runtime is the containerd. Start it again with Restart.
	Runtime *hostruntime.Runtime

	config hostruntime.Config
	reaper *reaper
}

// Local is the directory that `make runtime images` built in.
func Local() (string, error) {
	if dir := os.Getenv(LocalVariable); dir != "" {
		return dir, nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find .local: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return filepath.Join(dir, ".local"), nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("find .local: no go.work above the working directory, and %s is not set", LocalVariable)
		}
		dir = parent
	}
}

func start(ctx context.Context, env ...string) (*Node, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("a container runtime needs root: run the tests as root")
	}
	local, err := Local()
	if err != nil {
		return nil, err
	}
	host, err := hostruntime.DetectHost()
	if err != nil {
		return nil, err
	}
	slot, err := takeSlot()
	if err != nil {
		return nil, err
	}
	n := &Node{Dir: slot.dir, CgroupParent: "/" + slot.name}
	if host.SystemdCgroup() {
		n.CgroupParent = slot.name + ".slice"
	}
	n.config = hostruntime.DefaultConfig(local)
	n.config.Root = filepath.Join(slot.dir, "root")
	n.config.State = filepath.Join(slot.dir, "run")
	n.config.Bridge = slot.name
	n.config.PodCIDR = slot.cidr
	n.config.LogLevel = "info"
	n.config.Env = env
	n.config.Images = []hostruntime.Image{
		{Name: hostruntime.PauseImage, Archive: filepath.Join(local, "images", "pause.tar")},
		{Name: App, Archive: filepath.Join(local, "images", "app.tar")},
		{Name: Busybox, Archive: filepath.Join(local, "images", "busybox.tar")},
	}
	n.Endpoint = n.config.Endpoint()
	if n.reaper, err = startReaper(slot, estate{Config: n.config, Dir: n.Dir, CgroupParent: n.CgroupParent}); err != nil {
		return nil, err
	}
	if err := n.fill(ctx, local); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

// fill starts what the node consists of. What it started is undone by close.
func (n *Node) fill(ctx context.Context, local string) error {
	// The number may have been a killed test's, whose reaper was killed as well.
	if err := n.reaper.estate.remove(ctx); err != nil {
		return err
	}
	var err error
	if n.Registry, err = newRegistry(); err != nil {
		return err
	}
	n.config.PlainHTTP = []string{n.Registry.Host}
	for _, file := range []string{"app", "busybox"} {
		img, err := image.ReadArchive(filepath.Join(local, "images", file+".tar"))
		if err != nil {
			return fmt.Errorf("%w: run `make runtime images` first", err)
		}
		if _, err := n.Registry.Push(ctx, file+":1", img); err != nil {
			return err
		}
	}
	n.Runtime, err = hostruntime.Start(ctx, n.config)
	return err
}

// close lets the reaper remove everything and waits for it.
func (n *Node) close() error {
	var errs []error
	if n.Runtime != nil {
		errs = append(errs, n.Runtime.Close())
	}
	errs = append(errs, n.reaper.finish())
	if n.Registry != nil {
		errs = append(errs, n.Registry.close())
	}
	return errors.Join(errs...)
}

// Stop ends containerd gracefully; containers keep running.
func (n *Node) Stop(t testing.TB) {
	t.Helper()
	if err := n.Runtime.Stop(t.Context()); err != nil {
		t.Fatalf("stop containerd: %v", err)
	}
	n.Runtime = nil
}

// Kill ends containerd with SIGKILL; containers keep running.
func (n *Node) Kill(t testing.TB) {
	t.Helper()
	if err := syscall.Kill(n.Runtime.PID(), syscall.SIGKILL); err != nil {
		t.Fatalf("kill containerd: %v", err)
	}
	if err := errors.Join(n.Runtime.Wait(t.Context()), n.Runtime.Close()); err != nil {
		t.Fatalf("kill containerd: %v", err)
	}
	n.Runtime = nil
}

// Restart starts containerd after Stop or Kill, with the same root and state.
func (n *Node) Restart(t testing.TB) {
	t.Helper()
	var err error
	if n.Runtime, err = hostruntime.Start(t.Context(), n.config); err != nil {
		t.Fatalf("restart containerd: %v", err)
	}
}

// Client returns a CRI client that is closed when the test ends. It sees the sandboxes of all nodes.
func (n *Node) Client(t testing.TB) *cri.Client {
	t.Helper()
	client, err := cri.Dial(t.Context(), n.Endpoint, cri.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Errorf("close CRI client: %v", err)
		}
	})
	return client
}

// Push stores an image in the node's registry and returns its full name.
func (n *Node) Push(t testing.TB, name string, img v1.Image) string {
	t.Helper()
	full, err := n.Registry.Push(t.Context(), name, img)
	if err != nil {
		t.Fatal(err)
	}
	return full
}

// Ctr runs containerd's command line against the node and returns what it prints.
func (n *Node) Ctr(t testing.TB, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	args = append([]string{"--address", n.config.Socket(), "--namespace", "k8s.io"}, args...)
	out, err := exec.CommandContext(ctx, filepath.Join(n.config.BinDir, "ctr"), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("ctr %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
