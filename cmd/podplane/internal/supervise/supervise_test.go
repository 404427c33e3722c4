package supervise_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podplane/podplane/cmd/podplane/internal/supervise"
)

func TestNextDelay(t *testing.T) {
	for _, tc := range []struct {
		name              string
		before, ran, want time.Duration
	}{
		{"first quick end", 0, time.Second, 100 * time.Millisecond},
		{"doubles", 100 * time.Millisecond, time.Second, 200 * time.Millisecond},
		{"is capped", 1600 * time.Millisecond, 0, 2 * time.Second},
		{"stays capped", 2 * time.Second, 0, 2 * time.Second},
		{"a stable run resets it", 2 * time.Second, 10 * time.Second, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := supervise.NextDelay(tc.before, tc.ran); got != tc.want {
				t.Errorf("NextDelay(%v, %v) = %v, want %v", tc.before, tc.ran, got, tc.want)
			}
		})
	}
}

// TestKeepRestartsAndStops kills a child and sees another one, then ends the
// context and sees none.
func TestKeepRestartsAndStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	exits := make(chan supervise.Exit, 10)
	s := supervise.New(t.Context(), func(e supervise.Exit) { exits <- e })
	log := filepath.Join(t.TempDir(), "child.log")
	done := make(chan error, 1)
	go func() {
		done <- s.Keep(ctx, supervise.Process{
			Name: "child", Path: "/bin/sh", Args: []string{"-c", "echo $$; exec sleep 1000"},
			LogFile: log, PIDFile: log + ".pid", StopTimeout: 5 * time.Second,
		})
	}()
	first := waitPIDs(t, log, 1)[0]
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	e := <-exits
	if e.Name != "child" || e.Err == nil || e.Restart != 100*time.Millisecond {
		t.Errorf("exit = %+v, want child, killed, restart in 100ms", e)
	}
	second := waitPIDs(t, log, 2)[1]
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Keep = %v, want nil after its context ended", err)
	}
	if err := syscall.Kill(second, 0); err != syscall.ESRCH {
		t.Errorf("child %d is still there after Keep returned (%v)", second, err)
	}
}

// TestKeepKillsWhatIgnoresTerm bounds the stop of a child that won't end.
func TestKeepKillsWhatIgnoresTerm(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := supervise.New(t.Context(), func(supervise.Exit) {})
	log := filepath.Join(t.TempDir(), "child.log")
	done := make(chan error, 1)
	go func() {
		done <- s.Keep(ctx, supervise.Process{
			Name: "stubborn", Path: "/bin/sh", Args: []string{"-c", "trap '' TERM; echo $$; while :; do sleep 1000; done"},
			LogFile: log, PIDFile: log + ".pid", StopTimeout: 50 * time.Millisecond,
		})
	}()
	pid := waitPIDs(t, log, 1)[0]
	// The shell's own child would outlive it: it is in the same process group.
	t.Cleanup(func() { _ = syscall.Kill(-pid, syscall.SIGKILL) })
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Keep = %v, want nil", err)
	}
}

func TestKeepReportsWhatCannotStart(t *testing.T) {
	s := supervise.New(t.Context(), func(supervise.Exit) {})
	err := s.Keep(t.Context(), supervise.Process{Name: "ghost", Path: "/nonexistent", LogFile: filepath.Join(t.TempDir(), "l")})
	if err == nil || !strings.Contains(err.Error(), "start ghost") {
		t.Errorf("Keep = %v, want an error that names the process", err)
	}
}

func TestKeepGivesUpWhenToldSo(t *testing.T) {
	exits := 0
	s := supervise.New(t.Context(), func(supervise.Exit) { exits++ })
	log := filepath.Join(t.TempDir(), "child.log")
	enough := errors.New("enough")
	err := s.Keep(t.Context(), supervise.Process{
		Name: "mistaken", Path: "/bin/sh", Args: []string{"-c", "exit 2"}, LogFile: log, PIDFile: log + ".pid",
		GiveUp: func(end error) error {
			if exits > 0 && end != nil {
				return enough
			}
			return nil
		},
	})
	if !errors.Is(err, enough) || exits != 1 {
		t.Errorf("Keep = %v after %d restarts, want to give up after 1", err, exits)
	}
}

// waitPIDs waits until the child has written n lines, each a process id.
func waitPIDs(t *testing.T, log string, n int) []int {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		data, _ := os.ReadFile(log)
		lines := strings.Fields(string(data))
		if len(lines) >= n {
			pids := make([]int, len(lines))
			for i, l := range lines {
				pid, err := strconv.Atoi(l)
				if err != nil {
					t.Fatalf("log line %q is no process id", l)
				}
				pids[i] = pid
			}
			return pids
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("no %d process ids in %s within 20s", n, log)
	return nil
}
