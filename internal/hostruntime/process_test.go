package hostruntime

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Most tests have collected it already.
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

func TestProcessWait(t *testing.T) {
	p, err := openProcess(sleeper(t).Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.close() }()

	ctx, cancel := context.WithCancel(t.Context())
	waits := make(chan error, 2)
	for range 2 {
		go func() { waits <- p.wait(ctx) }()
	}
	cancel()
	for range 2 {
		if err := <-waits; !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled wait returned %v", err)
		}
	}

	for range 2 {
		go func() { waits <- p.wait(t.Context()) }()
	}
	if err := p.signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-waits; err != nil {
			t.Errorf("a wait for a process that ended returned %v", err)
		}
	}
	if err := p.signal(unix.SIGTERM); err != nil {
		t.Errorf("a signal to a process that ended: %v", err)
	}
}

func TestFindProcess(t *testing.T) {
	dir := t.TempDir()
	pidFile := filepath.Join(dir, "pid")
	find := func() *process {
		t.Helper()
		p, err := findProcess(pidFile, "/run/x/config.toml")
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if find() != nil {
		t.Error("found without a pid file")
	}
	for _, content := range []string{"", "x", "-1", "0", "1", "4194305"} {
		if err := os.WriteFile(pidFile, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if find() != nil {
			t.Errorf("found by %q", content)
		}
	}
	// A number that now belongs to another program.
	if err := os.WriteFile(pidFile, []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		t.Fatal(err)
	}
	if find() != nil {
		t.Error("another program is taken for containerd")
	}
	like := exec.Command("bash", "-c", "read", "--config", "/run/x/config.toml")
	stdin, err := like.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := like.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		// It ends with read's failure.
		_ = like.Wait()
	})
	if err := os.WriteFile(pidFile, []byte(strconv.Itoa(like.Process.Pid)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := find()
	if p == nil {
		t.Fatal("not found")
	}
	if err := p.close(); err != nil {
		t.Error(err)
	}
}

func TestDescendants(t *testing.T) {
	table := map[int]int{2: 1, 3: 2, 4: 3, 5: 1, 6: 5}
	found := map[int]bool{}
	for _, pid := range descendants(table, []int{2}) {
		found[pid] = true
	}
	if len(found) != 2 || !found[3] || !found[4] {
		t.Errorf("descendants of 2 are %v", found)
	}
}
