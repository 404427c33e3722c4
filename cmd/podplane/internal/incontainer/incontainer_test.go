package incontainer

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain lets the tests run this binary as the program that joins.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 3 && os.Args[1] == "write-there":
		if err := os.WriteFile(os.Args[2], []byte("joined"), 0o600); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	case len(os.Args) == 2 && os.Args[1] == "write-own":
		if err := os.WriteFile(os.Getenv("OWN_FILE"), []byte("joined"), 0o600); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	case len(os.Args) == 3 && os.Args[1] == "wait-there":
		if err := os.WriteFile(os.Args[2], nil, 0o600); err != nil {
			os.Exit(1)
		}
		select {}
	case len(os.Args) == 4 && os.Args[1] == "give":
		os.Exit(give(os.Args[2], os.Args[3]))
	}
	os.Exit(m.Run())
}

// give mounts a tmpfs that only its own mount namespace has, and gives that away.
func give(socket, dir string) int {
	if unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") != nil || unix.Mount("tmpfs", dir, "tmpfs", 0, "") != nil {
		return 1
	}
	if giveNamespace(context.Background(), socket) != nil {
		return 2
	}
	return 0
}

func startOwner(t *testing.T, socket, dir string) *exec.Cmd {
	t.Helper()
	owner := exec.Command("/proc/self/exe", "give", socket, dir)
	owner.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	owner.Stderr = os.Stderr
	started, done := make(chan error), make(chan struct{})
	go func() {
		// It is killed when the thread that started it ends: that must not be one that joins a namespace.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		started <- owner.Start()
		<-done
	}()
	if err := <-started; err != nil {
		t.Fatalf("start the owner of a mount namespace (as root): %v", err)
	}
	t.Cleanup(func() {
		_ = owner.Process.Kill() // it may have ended
		_ = owner.Wait()
		close(done)
	})
	return owner
}

func TestJoinedCommandWorksInTheRuntimesMounts(t *testing.T) {
	dir := t.TempDir()
	socket, mounted := filepath.Join(dir, "mounts.sock"), filepath.Join(dir, "mnt")
	if err := os.Mkdir(mounted, 0o755); err != nil {
		t.Fatal(err)
	}
	owner := startOwner(t, socket, mounted)
	if err := (joinOptions{socket: socket}).join(t.Context(), []string{"write-there", filepath.Join(mounted, "file")}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(mounted, "file")); !os.IsNotExist(err) {
		t.Errorf("the file is in this process' mount namespace too: %v", err)
	}
	seen := filepath.Join("/proc", strconv.Itoa(owner.Process.Pid), "root", mounted, "file")
	if got, err := os.ReadFile(seen); err != nil || string(got) != "joined" {
		t.Errorf("the owner sees %q, %v", got, err)
	}
	if err := (joinOptions{socket: socket}).join(t.Context(), []string{"write-there", filepath.Join(mounted, "no", "file")}); err == nil {
		t.Error("a command that failed is no error")
	}
}

// TestJoinedCommandFindsOwnFiles joins a namespace by its process, from where the joiner's own files are hidden.
func TestJoinedCommandFindsOwnFiles(t *testing.T) {
	dir := t.TempDir()
	socket, hidden := filepath.Join(t.TempDir(), "mounts.sock"), filepath.Join(dir, "hidden")
	if err := os.Mkdir(hidden, 0o755); err != nil {
		t.Fatal(err)
	}
	owner := startOwner(t, socket, hidden)
	waitForFile(t, socket) // its mount namespace is as it should be
	own := filepath.Join(hidden, "file")
	t.Setenv("OWN_FILE", own)
	o := joinOptions{pid: owner.Process.Pid}
	if err := o.join(t.Context(), []string{"write-own"}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(own); !os.IsNotExist(err) {
		t.Errorf("without --own the file is in this process' mount namespace: %v", err)
	}
	o.own = []string{"OWN_FILE", "UNSET"}
	if err := o.join(t.Context(), []string{"write-own"}); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(own); err != nil || string(got) != "joined" {
		t.Errorf("with --own the file is not here: %q, %v", got, err)
	}
	if err := (joinOptions{pid: 1 << 30}).join(t.Context(), []string{"write-own"}); err == nil {
		t.Error("a process that is not there is no error")
	}
}

func TestJoinedCommandEndsWithTheRuntime(t *testing.T) {
	dir := t.TempDir()
	socket, running := filepath.Join(dir, "mounts.sock"), filepath.Join(t.TempDir(), "running")
	owner := startOwner(t, socket, t.TempDir())
	ended := make(chan error, 1)
	go func() { ended <- joinOptions{socket: socket}.join(t.Context(), []string{"wait-there", running}) }()
	waitForFile(t, running)
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "the runtime has gone") {
			t.Errorf("got %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the joined command goes on without the runtime")
	}
}

func TestJoinedCommandIsAskedToStop(t *testing.T) {
	dir := t.TempDir()
	socket, running := filepath.Join(dir, "mounts.sock"), filepath.Join(t.TempDir(), "running")
	startOwner(t, socket, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- joinOptions{socket: socket}.join(ctx, []string{"wait-there", running}) }()
	waitForFile(t, running)
	cancel()
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		t.Fatal("the joined command was not stopped")
	}
}

// waitForFile waits until a child has made a file.
func waitForFile(t *testing.T, file string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(file); err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("nobody made %s", file)
		}
	}
}

func TestHealthOfAService(t *testing.T) {
	status := http.StatusOK
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			status = http.StatusNotFound
		}
		w.WriteHeader(status)
	}))
	defer srv.Close()
	file := filepath.Join(t.TempDir(), "address")
	if err := os.WriteFile(file, []byte(strings.TrimPrefix(srv.URL, "http://")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	byFile, byURL := healthOptions{addressFile: file, path: "/readyz"}, healthOptions{url: srv.URL + "/readyz"}
	for _, o := range []healthOptions{byFile, byURL} {
		if err := o.run(t.Context()); err != nil {
			t.Error(err)
		}
	}
	status = http.StatusServiceUnavailable
	for _, o := range []healthOptions{byFile, byURL, {addressFile: file + ".missing"}, {endpoint: "unix://" + file}} {
		if err := o.run(t.Context()); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}

func TestSandboxCollectsOrphansUntilItIsStopped(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- hold(ctx) }()
	child, err := os.StartProcess("/proc/self/exe", []string{"podplane", "wait-there", filepath.Join(t.TempDir(), "running")}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := child.Wait(); err == nil {
		// Who is first decides; collected it is in any case.
		t.Log("collected by its parent")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
