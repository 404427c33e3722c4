package up

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
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

func TestLastWords(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "\n\n": "", "one\n": "; its last line: one", "one\ntwo": "; its last line: two", "one\ntwo\n\n": "; its last line: two",
		strings.Repeat("x", 3*maxLastWords) + "\nend\n": "; its last line: end", strings.Repeat("y", 2*maxLastWords): "; its last line: " + strings.Repeat("y", maxLastWords),
	} {
		file := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := lastWords(file); got != want {
			t.Errorf("of %.20q…: %.40q, want %.40q", text, got, want)
		}
	}
	if got := lastWords(filepath.Join(t.TempDir(), "none")); got != "" {
		t.Errorf("of no log: %q", got)
	}
}
