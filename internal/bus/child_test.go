package bus_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/podplane/podplane/internal/bus/embedded"
)

// Environment of the test binary when it is to be a bus server.
const (
	envStore = "PODPLANE_TEST_BUS_STORE"
	envPort  = "PODPLANE_TEST_BUS_PORT"
	envLazy  = "PODPLANE_TEST_BUS_SYNC_PERIODIC"
)

func TestMain(m *testing.M) {
	if store := os.Getenv(envStore); store != "" {
		serve(store)
		return
	}
	goleak.VerifyTestMain(m)
}

// serve is a bus server until its standard input ends, which it does with its parent at the latest.
func serve(store string) {
	port, err := strconv.Atoi(os.Getenv(envPort))
	if err != nil {
		port = embedded.RandomPort
	}
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	s, err := embedded.Start(ctx, embedded.Options{StoreDir: store, KeyFile: filepath.Join(store, "key"), Port: port, SyncPeriodic: os.Getenv(envLazy) != ""})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(s.ClientURL())
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := s.Shutdown(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// child is a bus server in a process of its own, which can be killed.
type child struct {
	store string
	url   string
	lazy  bool
	cmd   *exec.Cmd
}

// start starts the server, again at its address if it had one, and gives the time until it was ready.
func (c *child) start(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	c.cmd = exec.Command(os.Args[0])
	c.cmd.Env = append(os.Environ(), envStore+"="+c.store)
	if c.lazy {
		c.cmd.Env = append(c.cmd.Env, envLazy+"=1")
	}
	if c.url != "" {
		c.cmd.Env = append(c.cmd.Env, envPort+"="+c.url[strings.LastIndex(c.url, ":")+1:])
	}
	c.cmd.Stderr = os.Stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if _, err := c.cmd.StdinPipe(); err != nil { // held open until the process ends
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		c.kill(t)
		t.Fatalf("the server did not start: %v", err)
	}
	c.url = strings.TrimSpace(line)
	return time.Since(began)
}

// kill kills the server with SIGKILL.
func (c *child) kill(t *testing.T) {
	t.Helper()
	if c.cmd == nil {
		return
	}
	if err := c.cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = c.cmd.Wait() // says that it was killed
	c.cmd = nil
}

func startChild(t *testing.T, store string) *child {
	t.Helper()
	c := &child{store: store}
	c.start(t)
	t.Cleanup(func() { c.kill(t) })
	return c
}
