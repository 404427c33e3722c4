package up

import (
	"slices"
	"testing"

	"github.com/podplane/podplane/internal/hostruntime"
)

// TestEveryLogIsBounded: containerd outlives us and writes a log as the services do.
func TestEveryLogIsBounded(t *testing.T) {
	s := &stack{cfg: Config{Root: "/lib"}, children: []*child{{name: "nats"}, {name: "syncd"}}}
	if got, want := s.logFiles(), []string{"/lib/log/nats.log", "/lib/log/syncd.log"}; !slices.Equal(got, want) {
		t.Errorf("with a runtime of somebody else's: %v, want %v", got, want)
	}
	s.runtime = &ownRuntime{config: hostruntime.Config{Root: "/lib/containerd"}}
	if got, want := s.logFiles(), []string{"/lib/log/nats.log", "/lib/log/syncd.log", "/lib/containerd/containerd.log"}; !slices.Equal(got, want) {
		t.Errorf("with our own: %v, want %v", got, want)
	}
}
