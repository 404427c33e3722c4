package testkit

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// shared is the containerd of this test binary.
var shared struct {
	sync.Mutex
	enabled bool
	node    *Node
	err     error
}

// Main runs the tests of a package and exits. Afterwards it calls the given functions, which end what tests shared, removes the
// shared runtime, if a test asked for it, and fails if one of these fails or goroutines are left.
func Main(m *testing.M, after ...func() error) {
	if config := os.Getenv(reaperVariable); config != "" {
		os.Exit(reap(config))
	}
	shared.enabled = true
	code := m.Run()
	for _, end := range append(after, closeShared) {
		if err := end(); err != nil {
			fmt.Fprintln(os.Stderr, "testkit:", err)
			code = max(code, 1)
		}
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "testkit: goroutines are left after the tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// Containerd returns the containerd that the tests of this binary share.
func Containerd(t testing.TB) *Node {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if !shared.enabled {
		t.Fatal("testkit: TestMain has to call testkit.Main")
	}
	if shared.node == nil && shared.err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		shared.node, shared.err = start(ctx)
	}
	if shared.err != nil {
		t.Fatalf("testkit: %v", shared.err)
	}
	return shared.node
}

func closeShared() error {
	shared.Lock()
	defer shared.Unlock()
	if shared.node == nil {
		return nil
	}
	err := shared.node.close()
	shared.node = nil
	return err
}

// NewNode starts a containerd for one test, with more variables in its environment, and removes it when the test ends.
func NewNode(t testing.TB, env ...string) *Node {
	t.Helper()
	if !shared.enabled {
		t.Fatal("testkit: TestMain has to call testkit.Main")
	}
	node, err := start(t.Context(), env...)
	if err != nil {
		t.Fatalf("testkit: %v", err)
	}
	t.Cleanup(func() {
		if err := node.close(); err != nil {
			t.Errorf("testkit: %v", err)
		}
	})
	return node
}

// CheckLeaks fails the test if goroutines that it started are left when it ends. Call it first.
func CheckLeaks(t testing.TB) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	// The shared node lives as long as the test binary, whichever test asked for it first.
	registry := goleak.IgnoreAnyFunction("github.com/podplane/podplane/internal/testkit.(*Registry).listen")
	t.Cleanup(func() {
		if err := goleak.Find(before, registry); err != nil {
			t.Errorf("goroutines are left: %v", err)
		}
	})
}
