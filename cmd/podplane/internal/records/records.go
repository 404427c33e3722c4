// Package records opens a host's own records on disk while Podplane is not up.
package records

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/embedded"
	"github.com/podplane/podplane/internal/fault"
)

const (
	// RequestTimeout bounds one answer of the server: it has a large stream to put on disk before it says that it is there.
	RequestTimeout = time.Minute
	stopTimeout    = 10 * time.Second
)

// Serve starts a server on a directory of records that nobody else uses, with the file of their key (empty: they are in the clear), for as
// long as f runs. f's connection is an administrator's. A directory without records is an error of kind NotFound.
func Serve(ctx context.Context, dir, keyFile string, f func(context.Context, *bus.Conn) error) error {
	if _, err := os.Stat(filepath.Join(dir, "jetstream")); errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.NotFound, "there are no records in %s", dir)
	}
	return ServeNew(ctx, dir, keyFile, f)
}

// ServeNew is Serve for a directory that may be empty.
func ServeNew(ctx context.Context, dir, keyFile string, f func(context.Context, *bus.Conn) error) error {
	starting, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	s, err := embedded.Start(starting, embedded.Options{StoreDir: dir, KeyFile: keyFile, Name: "podplane-offline", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	c, err := bus.ConnectEmbedded(starting, s, bus.Config{Instance: "operator", RequestTimeout: RequestTimeout})
	if err != nil {
		return Closing(ctx, s.Shutdown, err)
	}
	return Closing(ctx, s.Shutdown, Closing(ctx, c.Close, f(ctx, c)))
}

// Closing ends something, within 10 s, after err is known, and joins both errors.
func Closing(ctx context.Context, end func(context.Context) error, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	return errors.Join(err, end(ctx))
}
