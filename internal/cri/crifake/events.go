package crifake

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/pod"
)

const streamBuffer = 4096

type stream struct {
	ctx    context.Context
	cancel context.CancelFunc
	store  *store
	node   string
	events chan cri.Event

	mu  sync.Mutex
	err error
}

// Events implements [cri.EventSource].
func (r *Runtime) Events(ctx context.Context) (cri.EventStream, error) {
	if err := r.enter(ctx, "get_container_events", ""); err != nil {
		return nil, err
	}
	streamCtx, cancel := context.WithCancel(ctx)
	s := &stream{ctx: streamCtx, cancel: cancel, store: r.store, node: r.node, events: make(chan cri.Event, streamBuffer)}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.streams[s] = struct{}{}
	return s, nil
}

// BreakStreams ends all streams of events with the error (nil: io.EOF), as a restart of the runtime does.
func (r *Runtime) BreakStreams(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		err = io.EOF
	}
	for s := range r.streams {
		s.fail(err)
	}
	clear(r.streams)
}

// DropEvents loses all events from now on, or no longer.
func (r *Runtime) DropEvents(drop bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropEvents = drop
}

// Streams returns how many streams of events are open.
func (r *Runtime) Streams() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.streams)
}

// Recv implements [cri.EventStream].
func (s *stream) Recv() (cri.Event, error) {
	select { // what was sent before the end is received
	case e := <-s.events:
		return e, nil
	default:
	}
	select {
	case e := <-s.events:
		return e, nil
	case <-s.ctx.Done():
		select {
		case e := <-s.events:
			return e, nil
		default:
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if errors.Is(s.err, io.EOF) {
			return cri.Event{}, io.EOF
		}
		err := s.err
		if err == nil {
			err = s.ctx.Err()
		}
		return cri.Event{}, &cri.CallError{Op: "get_container_events", Err: err}
	}
}

// Close implements [cri.EventStream].
func (s *stream) Close() {
	s.cancel()
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	delete(s.store.streams, s)
}

func (s *stream) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	s.cancel()
}

// emit sends what just happened, with the pod's state of now. The caller holds the mutex.
func (s *store) emit(t cri.EventType, id string, sb *sandbox) {
	if s.dropEvents || len(s.streams) == 0 {
		return
	}
	snapshot := sb.Sandbox
	e := cri.Event{Type: t, ID: id, At: s.clock.Now(), Sandbox: &snapshot}
	for _, c := range s.inSandbox(sb) {
		e.Containers = append(e.Containers, c.Container)
	}
	for st := range s.streams {
		if st.node != "" && snapshot.Labels[pod.LabelNode] != st.node {
			continue
		}
		select {
		case st.events <- e:
		default: // full: lost
		}
	}
}
