package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"

	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/watchcache"
)

const (
	bookmarkInterval = time.Minute
	// A watch without a timeout of its own ends after between one and two times this, so that clients spread.
	watchTimeout = 30 * time.Minute
	// maxTimeoutSeconds keeps what a client asks for within what a timer can hold.
	maxTimeoutSeconds = 24 * 60 * 60
)

func (r *resource) watch(req *podplanev1.ListRequest, match func(*watchcache.Object) bool, stream bodyStream) error {
	from, err := watchcache.ParseVersion(req.GetResourceVersion())
	if err != nil {
		return err
	}
	w, err := r.table.Watch(from, watchcache.Filter{Namespace: req.GetNamespace(), Match: match})
	if err != nil {
		return err
	}
	defer w.Close()
	// The client learns that the watch stands before the first change.
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(stream.Context(), timeout(req.GetTimeoutSeconds()))
	defer cancel()
	s := watchStream{resource: r, stream: stream, bookmarks: req.GetAllowWatchBookmarks()}
	initial, version := w.Initial()
	for _, o := range initial {
		if err := s.event(watchcache.Event{Type: watchcache.Added, Object: o}); err != nil {
			return err
		}
	}
	if version > 0 {
		if err := s.bookmark(version); err != nil {
			return err
		}
	}
	return s.follow(ctx, w)
}

func timeout(seconds int64) time.Duration {
	if seconds > 0 {
		return time.Duration(min(seconds, maxTimeoutSeconds)) * time.Second
	}
	return watchTimeout + time.Duration(rand.Int64N(int64(watchTimeout)))
}

type watchStream struct {
	*resource
	stream    bodyStream
	bookmarks bool
}

// follow sends events until the watch ends: by the client, by its timeout, or with an ERROR event by us.
func (s *watchStream) follow(ctx context.Context, w *watchcache.Watcher) error {
	next := time.Now().Add(bookmarkInterval)
	for {
		e, err := s.next(ctx, w, next)
		switch {
		case err == nil:
			if err := s.event(e); err != nil {
				return err
			}
		case ctx.Err() != nil:
			return ended(s.stream.Context())
		case errors.Is(err, context.DeadlineExceeded):
			if err := s.bookmark(w.Seen()); err != nil {
				return err
			}
			next = time.Now().Add(bookmarkInterval)
		case fault.Is(err, fault.Unavailable):
			return nil // this service stops: a watch that ends is one to start again
		default:
			return s.send(watchcache.Error, statusOf(err))
		}
	}
}

// ended tells the end that the client asked for from one that it caused.
func ended(client context.Context) error {
	if err := client.Err(); err != nil {
		return fault.New(fault.Canceled, "the client ended the watch: %w", err)
	}
	return nil
}

func (s *watchStream) next(ctx context.Context, w *watchcache.Watcher, until time.Time) (watchcache.Event, error) {
	if !s.bookmarks {
		return w.Next(ctx)
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	return w.Next(ctx)
}

func (s *watchStream) event(e watchcache.Event) error {
	data, err := e.Object.JSON()
	if err != nil {
		return err
	}
	return s.send(e.Type, data)
}

func (s *watchStream) bookmark(version uint64) error {
	if !s.bookmarks {
		return nil
	}
	return s.send(watchcache.Bookmark, []byte(fmt.Sprintf(`{"kind":%q,"apiVersion":"v1","metadata":{"resourceVersion":"%d","creationTimestamp":null}}`, s.kind, version)))
}

func (s *watchStream) send(kind string, object []byte) error {
	line := make([]byte, 0, len(object)+32)
	line = append(line, `{"type":"`+kind+`","object":`...)
	line = append(line, object...)
	line = append(line, "}\n"...)
	return s.stream.Send(&httpbody.HttpBody{ContentType: jsonType, Data: line})
}

func statusOf(err error) []byte {
	data, encodeErr := json.Marshal(fault.ToStatus(err))
	if encodeErr != nil {
		return []byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","code":500}`)
	}
	return data
}
