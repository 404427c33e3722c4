package relist

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/podplane/podplane/internal/fault"
)

// watch keeps a stream of events open until the context ends and passes on what comes.
func (l *Loop) watch(ctx context.Context) {
	var last error
	for wait := streamMin; ; wait = min(2*wait, streamMax) {
		received, err := l.watchOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		l.metrics.connectionErrors.Inc()
		if received {
			wait = streamMin
		}
		if fault.Is(err, fault.Unimplemented) {
			wait = streamAbsent
		}
		if last == nil || received {
			l.opts.Log.WarnContext(ctx, "no event stream from the runtime, relisting instead", "error", err)
		}
		last = err
		if !l.send(ctx, input{stream: &streamChange{err: err}}) {
			return
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// watchOnce reads one stream to its end. It says whether anything came.
func (l *Loop) watchOnce(ctx context.Context) (received bool, err error) {
	s, err := l.rt.Events(ctx)
	if err != nil {
		return false, err
	}
	defer s.Close()
	opened := time.Now()
	if !l.send(ctx, input{stream: &streamChange{}}) {
		return false, ctx.Err()
	}
	l.metrics.connectionSuccess.Inc()
	for {
		e, err := s.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = fault.New(fault.Unavailable, "the runtime ended the event stream")
			}
			// A stream that lasted was a good one, also when nothing happened.
			return received || time.Since(opened) > streamMax, err
		}
		received = true
		if !l.send(ctx, input{event: &e}) {
			return received, ctx.Err()
		}
	}
}
