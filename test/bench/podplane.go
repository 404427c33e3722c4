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

// journal notes when a follower of the journal had each container's end.
type journal struct {
	cancel context.CancelFunc
	done   chan struct{}
	mu     sync.Mutex
	died   map[string]time.Time
}

func (s *subject) follow(ctx context.Context) (*journal, error) {
	ctx, cancel := context.WithCancel(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.stack.Server()+"/podplane/v1/lifecycle?follow=true&namespace="+namespace, nil)
	if err != nil {
		cancel()
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		cancel()
		return nil, err
	}
	j := &journal{cancel: cancel, done: make(chan struct{}), died: map[string]time.Time{}}
	go func() {
		defer close(j.done)
		defer func() { _ = resp.Body.Close() }()
		sc := bufio.NewScanner(resp.Body)
		sc.Buffer(nil, 1<<20)
		for sc.Scan() {
			j.note(sc.Bytes(), time.Now())
		}
	}()
	return j, nil
}

func (j *journal) note(line []byte, at time.Time) {
	if !bytes.Contains(line, []byte("CONTAINER_DIED")) {
		return
	}
	var l struct {
		Event struct {
			ContainerID string `json:"containerId"`
		} `json:"event"`
	}
	if json.Unmarshal(line, &l) != nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, ok := j.died[l.Event.ContainerID]; !ok {
		j.died[l.Event.ContainerID] = at
	}
}

func (j *journal) seen(id string) (time.Time, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	at, ok := j.died[id]
	return at, ok
}

func (j *journal) close() {
	j.cancel()
	<-j.done
}

// exits starts n pods, kills the container of one after the other, and
// measures from the runtime's time of the exit until a follower of the journal
// has the event, and until the next instance has started.
func (s *subject) exits(ctx context.Context, n int) (events, restarts []float64, err error) {
	j, err := s.follow(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer j.close()
	if _, _, err := s.start(ctx, n); err != nil {
		return nil, nil, err
	}
	w, err := s.watch(ctx, fmt.Sprintf("run=%d", s.run))
	if err != nil {
		return nil, nil, err
	}
	defer w.close()
	ids, err := w.waitRunning(n)
	if err != nil {
		return nil, nil, err
	}
	for _, id := range ids {
		event, restart, err := s.exit(ctx, w, j, id)
		if err != nil {
			return nil, nil, err
		}
		events = append(events, milliseconds(event))
		restarts = append(restarts, milliseconds(restart))
	}
	return events, restarts, s.remove(ctx)
}

func (s *subject) exit(ctx context.Context, w *watch, j *journal, id string) (event, restart time.Duration, err error) {
	if err := s.cri.StopContainer(ctx, id, 0); err != nil {
		return 0, 0, err
	}
	next, err := w.waitRestarted(id)
	if err != nil {
		return 0, 0, err
	}
	old, err := s.cri.ContainerStatus(ctx, id)
	if err != nil {
		return 0, 0, err
	}
	now, err := s.cri.ContainerStatus(ctx, next)
	if err != nil {
		return 0, 0, err
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if at, ok := j.seen(id); ok {
			return at.Sub(old.FinishedAt), now.StartedAt.Sub(old.FinishedAt), nil
		}
		select {
		case <-ctx.Done():
			return 0, 0, fmt.Errorf("the journal never told of the end of container %s: %w", id, ctx.Err())
		case <-tick.C:
		}
	}
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
