package embedded

import (
	"fmt"
	"log/slog"
	"sync"

	"github.com/podplane/podplane/internal/fault"
)

// logger passes the server's messages to slog and keeps the first fatal one.
type logger struct {
	log *slog.Logger

	mu  sync.Mutex
	err error
}

func newLogger(l *slog.Logger) *logger {
	if l == nil {
		l = slog.New(slog.DiscardHandler)
	}
	return &logger{log: l}
}

func (l *logger) fatal() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Noticef implements the server's logger.
func (l *logger) Noticef(format string, v ...any) { l.log.Debug("nats: " + fmt.Sprintf(format, v...)) }

// Warnf implements the server's logger.
func (l *logger) Warnf(format string, v ...any) { l.log.Warn("nats: " + fmt.Sprintf(format, v...)) }

// Errorf implements the server's logger.
func (l *logger) Errorf(format string, v ...any) { l.log.Error("nats: " + fmt.Sprintf(format, v...)) }

// Fatalf implements the server's logger. The process goes on: Start returns the error.
func (l *logger) Fatalf(format string, v ...any) {
	l.mu.Lock()
	if l.err == nil {
		l.err = fault.New(fault.Unavailable, format, v...)
	}
	l.mu.Unlock()
	l.log.Error("nats: " + fmt.Sprintf(format, v...))
}

// Debugf implements the server's logger; debugging is off.
func (l *logger) Debugf(string, ...any) {}

// Tracef implements the server's logger; tracing is off.
func (l *logger) Tracef(string, ...any) {}
