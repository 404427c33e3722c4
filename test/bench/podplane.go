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

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/test/harness"
)

const namespace = "bench"

// applyParallel is how many POSTs are under way at once.
const applyParallel = 8

// subject is Podplane, driven as a user drives it.
type subject struct {
	stack *harness.Stack
	cri   *cri.Client
	image string
	run   int
}

// start posts n pods at once and returns how long it took from the first POST
// until the last container had started, by the runtime's own clock, and what
// each POST took.
func (s *subject) start(ctx context.Context, n int) (took time.Duration, posts []time.Duration, err error) {
	s.run++
	w, err := s.watch(ctx, fmt.Sprintf("run=%d", s.run))
	if err != nil {
		return 0, nil, err
	}
	defer w.close()
	posts = make([]time.Duration, n)
	began := time.Now()
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(applyParallel)
	for i := range n {
		g.Go(func() error {
			at := time.Now()
			_, err := s.stack.Apply(gctx, namespace, s.manifest(i, "Always", "sleep, forever"))
			posts[i] = time.Since(at)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return 0, nil, err
	}
	ids, err := w.waitRunning(n)
	if err != nil {
		return 0, nil, err
	}
	var last time.Time
	for _, id := range ids {
		st, err := s.cri.ContainerStatus(ctx, id)
		if err != nil {
			return 0, nil, err
		}
		if st.StartedAt.After(last) {
			last = st.StartedAt
		}
	}
	return last.Sub(began), posts, nil
}

func (s *subject) manifest(i int, restart string, args string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata:
  name: pod-%d-%d
  labels: {run: "%d"}
spec:
  restartPolicy: %s
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: %s
    args: [%s]
`, s.run, i, s.run, restart, s.image, args)
}

// remove deletes the pods of the last run and waits until all are gone.
func (s *subject) remove(ctx context.Context) error {
	path := fmt.Sprintf("/api/v1/namespaces/%s/pods?labelSelector=run%%3D%d", namespace, s.run)
	if _, err := s.stack.Want(ctx, http.StatusOK, http.MethodDelete, path+"&gracePeriodSeconds=1", "", nil); err != nil {
		return err
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		a, err := s.stack.Want(ctx, http.StatusOK, http.MethodGet, path, "", nil)
		if err != nil {
			return err
		}
		var list corev1.PodList
		if err := json.Unmarshal(a.Body, &list); err != nil {
			return err
		}
		if len(list.Items) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d pods are still there: %w", len(list.Items), ctx.Err())
		case <-tick.C:
		}
	}
}

// watch follows the pods that a label selects.
type watch struct {
	cancel context.CancelFunc
	body   *http.Response
	pods   *json.Decoder
}

func (s *subject) watch(ctx context.Context, selector string) (*watch, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.stack.Server()+"/api/v1/namespaces/"+namespace+"/pods?watch=true&labelSelector="+selector, nil)
	if err != nil {
		cancel()
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		cancel()
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		cancel()
		_ = resp.Body.Close()
		return nil, fmt.Errorf("watch pods: %s", resp.Status)
	}
	return &watch{cancel: cancel, body: resp, pods: json.NewDecoder(resp.Body)}, nil
}

func (w *watch) close() {
	w.cancel()
	_ = w.body.Body.Close()
}

// next is the next state of a pod.
func (w *watch) next() (*corev1.Pod, error) {
	var ev struct {
		Type   string     `json:"type"`
		Object corev1.Pod `json:"object"`
	}
	if err := w.pods.Decode(&ev); err != nil {
		return nil, fmt.Errorf("read watch: %w", err)
	}
	if ev.Type == "ERROR" {
		return nil, fmt.Errorf("watch ended with an error")
	}
	return &ev.Object, nil
}

// waitRunning waits until n pods have a running container and returns their
// containers' ids.
func (w *watch) waitRunning(n int) ([]string, error) {
	ids := map[string]string{}
	for len(ids) < n {
		p, err := w.next()
		if err != nil {
			return nil, fmt.Errorf("%d of %d pods run: %w", len(ids), n, err)
		}
		for _, c := range p.Status.ContainerStatuses {
			if c.State.Running != nil {
				ids[p.Name] = harness.ContainerID(p, c.Name)
			}
		}
	}
	out := make([]string, 0, n)
	for _, id := range ids {
		out = append(out, id)
	}
	return out, nil
}

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
	w, err := s.watch(ctx, fmt.Sprintf("run=%d", s.run))
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
	return out, s.remove(ctx)
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
		p, err := w.next()
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
