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
	attempts := 0
	if err := patiently(func() error {
		attempts++
		if attempts == 3 {
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
		return canListen(addr)
	}); err != nil || attempts != 3 {
		t.Errorf("a port that its owner lets go of: %v after %d attempts", err, attempts)
	}
}
