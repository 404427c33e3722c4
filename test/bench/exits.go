package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/test/harness"
)

// deaths notes when somebody was told of each container's end.
type deaths struct {
	mu sync.Mutex
	at map[string]time.Time
}

func (d *deaths) note(id string, at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.at[id]; !ok {
		d.at[id] = at
	}
}

// wait waits until it has been told of the container's end.
func (d *deaths) wait(ctx context.Context, id string) (time.Time, error) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		d.mu.Lock()
		at, ok := d.at[id]
		d.mu.Unlock()
		if ok {
			return at, nil
		}
		select {
		case <-ctx.Done():
			return at, fmt.Errorf("nobody told of the end of container %s: %w", id, ctx.Err())
		case <-tick.C:
		}
	}
}

// follow notes what a follower of the journal over REST is told, until the
// returned function is called.
func (s *subject) follow(ctx context.Context) (*deaths, func(), error) {
	ctx, cancel := context.WithCancel(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.stack.Server()+"/podplane/v1/lifecycle?follow=true&namespace="+namespace, nil)
	if err != nil {
		cancel()
		return nil, nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		cancel()
		return nil, nil, err
	}
	d := &deaths{at: map[string]time.Time{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = resp.Body.Close() }()
		sc := bufio.NewScanner(resp.Body)
		sc.Buffer(nil, 1<<20)
		for sc.Scan() {
			noteLine(d, sc.Bytes(), time.Now())
		}
	}()
	return d, func() { cancel(); <-done }, nil
}

func noteLine(d *deaths, line []byte, at time.Time) {
	if !bytes.Contains(line, []byte("CONTAINER_DIED")) {
		return
	}
	var l struct {
		Event struct {
			ContainerID string `json:"containerId"`
		} `json:"event"`
	}
	if json.Unmarshal(line, &l) == nil {
		d.note(l.Event.ContainerID, at)
	}
}

// listen notes what the runtime itself tells: nobody can know earlier.
func (s *subject) listen(ctx context.Context) (*deaths, func(), error) {
	stream, err := s.cri.Events(ctx)
	if err != nil {
		return nil, nil, err
	}
	d := &deaths{at: map[string]time.Time{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			ev, err := stream.Recv()
			if err != nil {
				return
			}
			if ev.Type == cri.EventStopped {
				d.note(ev.ID, time.Now())
			}
		}
	}()
	return d, func() { stream.Close(); <-done }, nil
}

// exitTimes are of containers that were killed, in ms.
type exitTimes struct {
	// toRuntimeEvent: from the exit until the runtime told of it.
	toRuntimeEvent []float64
	// toFollower: from then until a follower of the journal had it; below 0 where the follower was first.
	toFollower []float64
	// toRestart: from the exit until the next instance had started.
	toRestart []float64
}

// exits starts n pods and kills the container of one after the other.
func (s *subject) exits(ctx context.Context, n int) (out exitTimes, err error) {
	journal, stopJournal, err := s.follow(ctx)
	if err != nil {
		return out, err
	}
	defer stopJournal()
	runtime, stopRuntime, err := s.listen(ctx)
	if err != nil {
		return out, err
	}
	defer stopRuntime()
	if _, _, err := s.start(ctx, n); err != nil {
		return out, err
	}
	w, err := s.watch(ctx, s.set())
	if err != nil {
		return out, err
	}
	defer w.close()
	ids, err := w.waitRunning(n)
	if err != nil {
		return out, err
	}
	for _, id := range ids {
		if err := s.exit(ctx, w, journal, runtime, id, &out); err != nil {
			return out, err
		}
	}
	_, err = s.remove(ctx)
	return out, err
}

func (s *subject) exit(ctx context.Context, w *watch, journal, runtime *deaths, id string, out *exitTimes) error {
	if err := s.cri.StopContainer(ctx, id, 0); err != nil {
		return err
	}
	next, err := w.waitRestarted(id)
	if err != nil {
		return err
	}
	old, err := s.cri.ContainerStatus(ctx, id)
	if err != nil {
		return err
	}
	now, err := s.cri.ContainerStatus(ctx, next)
	if err != nil {
		return err
	}
	told, err := runtime.wait(ctx, id)
	if err != nil {
		return err
	}
	had, err := journal.wait(ctx, id)
	if err != nil {
		return err
	}
	out.toRuntimeEvent = append(out.toRuntimeEvent, milliseconds(told.Sub(old.FinishedAt)))
	out.toFollower = append(out.toFollower, milliseconds(had.Sub(told)))
	out.toRestart = append(out.toRestart, milliseconds(now.StartedAt.Sub(old.FinishedAt)))
	return nil
}

// waitRestarted waits until the pod whose container id ended runs another one,
// and returns that one's id.
func (w *watch) waitRestarted(id string) (string, error) {
	for {
		p, _, err := w.next()
		if err != nil {
			return "", err
		}
		for _, c := range p.Status.ContainerStatuses {
			last := c.LastTerminationState.Terminated
			if c.State.Running != nil && last != nil && len(last.ContainerID) >= len(id) && last.ContainerID[len(last.ContainerID)-len(id):] == id {
				return harness.ContainerID(p, c.Name), nil
			}
		}
	}
}
