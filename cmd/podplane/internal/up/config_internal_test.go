package up

import (
	"errors"
	"net"
	"syscall"
	"testing"
)

// TestPortOfAProcessThatIsGoing: after a SIGKILL of everything the next start may be there before the kernel has cleared up.
func TestPortOfAProcessThatIsGoing(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	addr := l.Addr().String()
	if _, err := freePort(addr); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a port that stays in use: %v, want EADDRINUSE", err)
	}
	result := make(chan error, 1)
	go func() {
		_, err := freePort(addr)
		result <- err
	}()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Errorf("a port that its owner lets go of: %v", err)
	}
}
