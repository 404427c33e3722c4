package hostruntime_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/hostruntime"
	"github.com/podplane/podplane/internal/testkit"
)

// start starts the runtime of a node once more, as the next process of a user does.
func start(t *testing.T, config hostruntime.Config) *hostruntime.Runtime {
	t.Helper()
	r, err := hostruntime.Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func TestStartAdoptsWhatRuns(t *testing.T) {
	node := testkit.NewNode(t)
	// Another shell, with another PATH.
	t.Setenv("PATH", os.Getenv("PATH")+":/nowhere")
	again := start(t, node.Runtime.Config())
	if !again.Adopted() || again.PID() != node.Runtime.PID() {
		t.Errorf("adopted %v, process %d, want %d", again.Adopted(), again.PID(), node.Runtime.PID())
	}
}

func TestStartReplacesWhatChanged(t *testing.T) {
	node := testkit.NewNode(t)
	client := node.Client(t)
	sandbox, err := client.RunSandbox(t.Context(), &cri.SandboxConfig{
		Name: "stays", Namespace: "default", UID: "uid", LogDirectory: t.TempDir(), CgroupParent: node.CgroupParent,
	})
	if err != nil {
		t.Fatal(err)
	}
	config := node.Runtime.Config()
	config.LogLevel = "debug"
	again := start(t, config)
	if again.Adopted() || again.PID() == node.Runtime.PID() {
		t.Error("the containerd with the old configuration was kept")
	}
	if err := node.Runtime.Wait(t.Context()); err != nil {
		t.Errorf("the old containerd: %v", err)
	}
	status, err := node.Client(t).SandboxStatus(t.Context(), sandbox)
	if err != nil || !status.Ready {
		t.Errorf("the sandbox after the replacement: ready %v, %v", status.Ready, err)
	}
}

func TestImagesNeedNoRegistryAndAreImportedOnce(t *testing.T) {
	node := testkit.NewNode(t)
	client := node.Client(t)
	for _, image := range node.Runtime.Config().Images {
		status, err := client.ImageStatus(t.Context(), cri.ImageSpec{Image: image.Name})
		if err != nil {
			t.Fatal(err)
		}
		if !status.Pinned {
			t.Errorf("image %s is not pinned", image.Name)
		}
	}
	// A second import would need ctr, which is away.
	config := node.Runtime.Config()
	bin := t.TempDir()
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "runc"} {
		if err := os.Symlink(filepath.Join(config.BinDir, name), filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(bin, "ctr"), []byte("#!/bin/sh\necho called >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	config.BinDir = bin
	start(t, config)

	// An archive that changed is imported again.
	changed := filepath.Join(t.TempDir(), "app.tar")
	content, err := os.ReadFile(config.Images[1].Archive)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(changed, content, 0o644); err != nil {
		t.Fatal(err)
	}
	config.Images = append([]hostruntime.Image(nil), config.Images...)
	config.Images[1].Archive = changed
	if _, err := hostruntime.Start(t.Context(), config); err == nil || !strings.Contains(err.Error(), "called") {
		t.Errorf("start with a changed archive: %v, want ctr's error", err)
	}
}

func TestStartReplacesWhatHangs(t *testing.T) {
	node := testkit.NewNode(t)
	if err := syscall.Kill(node.Runtime.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if again := start(t, node.Runtime.Config()); again.Adopted() {
		t.Error("a containerd that hangs was adopted")
	}
}

func TestStopForcesAHungContainerd(t *testing.T) {
	node := testkit.NewNode(t)
	r := start(t, node.Runtime.Config())
	if err := syscall.Kill(r.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := node.Runtime.Stop(ctx); err != nil {
		t.Errorf("stop: %v", err)
	}
	node.Runtime = nil
	if err := r.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestNetworkComesBackAfterItWasRetired(t *testing.T) {
	node := testkit.NewNode(t)
	config := node.Runtime.Config()
	sandbox := func(name string) (string, error) {
		return node.Client(t).RunSandbox(t.Context(), &cri.SandboxConfig{
			Name: name, Namespace: "default", UID: name, LogDirectory: t.TempDir(), CgroupParent: node.CgroupParent,
		})
	}
	id, err := sandbox("before")
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Client(t).RemoveSandbox(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := node.Runtime.Retire(t.Context()); err != nil {
		t.Fatal(err)
	}
	node.Runtime = nil
	if _, err := net.InterfaceByName(config.Bridge); err == nil {
		t.Error("the bridge is still there")
	}
	node.Restart(t)
	if _, err := sandbox("after"); err != nil {
		t.Errorf("a sandbox after the network was removed: %v", err)
	}
	if _, err := net.InterfaceByName(config.Bridge); err != nil {
		t.Errorf("the bridge did not come back: %v", err)
	}
}

func TestStartSaysWhyContainerdEnded(t *testing.T) {
	node := testkit.NewNode(t)
	config := node.Runtime.Config()
	bin := t.TempDir()
	for _, name := range []string{"containerd-shim-runc-v2", "runc", "ctr"} {
		if err := os.Symlink(filepath.Join(config.BinDir, name), filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(bin, "containerd"), []byte("#!/bin/sh\necho the disk is on fire >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	config.BinDir = bin
	begin := time.Now()
	_, err := hostruntime.Start(t.Context(), config)
	if err == nil || !strings.Contains(err.Error(), "the disk is on fire") {
		t.Errorf("error is %v, want the end of the log", err)
	}
	if took := time.Since(begin); took > hostruntime.StartTimeout/2 {
		t.Errorf("the failure was noticed after %s only", took)
	}
	if _, err := os.Stat(filepath.Join(config.State, "containerd.pid")); !os.IsNotExist(err) {
		t.Errorf("a pid file of a containerd that ended: %v", err)
	}
}
