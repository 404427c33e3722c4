package manager_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
)

// logs collects what one test logs.
var logs = &lockedBuffer{}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func logger(t *testing.T) *slog.Logger {
	t.Helper()
	logs.mu.Lock()
	logs.b.Reset()
	logs.mu.Unlock()
	return slog.New(slog.NewTextHandler(logs, nil))
}

func logged() []string {
	logs.mu.Lock()
	defer logs.mu.Unlock()
	return strings.Split(logs.b.String(), "\n")
}
