package daemon_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/embedded"
	"github.com/podplane/podplane/internal/daemon"
)

// childURL makes the test binary a service on the bus at this address.
const childURL = "PODPLANE_TEST_CHILD_URL"

func TestMain(m *testing.M) {
	if url := os.Getenv(childURL); url != "" {
		child(url)
	}
	// The server's shared clock ends a tick after the last server.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"))
}

// child is a service that says what happens to it and does not stop when it is asked to once, if told so.
func child(url string) {
	s := service(func(ctx context.Context, _ config, deps daemon.Deps) error {
		deps.Serve()
		fmt.Println("serving")
		<-ctx.Done()
		fmt.Println("stopping")
		if os.Getenv("PODPLANE_TEST_CHILD_HANGS") != "" {
			select {}
		}
		return nil
	})
	s.Name = bus.ServiceProber
	cmd := daemon.Command(s)
	cmd.SetArgs([]string{"--nats-url=" + url, "--node=n1", "--shutdown-timeout=1m"})
	daemon.Main(cmd)
}

// startChild runs the child and gives it with a reader of what it says.
func startChild(t *testing.T, env ...string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	nats := startBus(t, "", embedded.RandomPort)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), append(env, childURL+"="+nats.ClientURL())...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	expectLine(t, lines, "serving")
	return cmd, lines
}

func expectLine(t *testing.T, lines *bufio.Reader, want string) {
	t.Helper()
	if line, err := lines.ReadString('\n'); err != nil || strings.TrimSpace(line) != want {
		t.Fatalf("the service said %q (%v), want %q", line, err, want)
	}
}

func TestSignalsStopGracefully(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			cmd, lines := startChild(t)
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			expectLine(t, lines, "stopping")
			if err := cmd.Wait(); err != nil {
				t.Errorf("a graceful stop ended with %v", err)
			}
		})
	}
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	cmd, lines := startChild(t, "PODPLANE_TEST_CHILD_HANGS=1")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	expectLine(t, lines, "stopping")
	begin := time.Now()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || !exit.Sys().(syscall.WaitStatus).Signaled() || time.Since(begin) > 30*time.Second {
		t.Errorf("a second signal ended it with %v after %v", err, time.Since(begin))
	}
}
