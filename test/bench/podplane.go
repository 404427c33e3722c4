package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/test/harness"
)

const namespace = "bench"

// grace is what containers have to end, in seconds. They need none of it.
const grace = 1

// applyParallel is how many POSTs are under way at once.
const applyParallel = 8

// subject is Podplane, driven as a user drives it.
type subject struct {
	stack *harness.Stack
	cri   *cri.Client
	image string
	run   int
	// filled is how many pods fill has made.
	filled int
}

// start posts n pods at once and returns how long it took from the first POST
// until the last container had started, by the runtime's own clock, and what
// each POST took.
func (s *subject) start(ctx context.Context, n int) (took time.Duration, posts []time.Duration, err error) {
	s.run++
	w, err := s.watch(ctx, s.set())
	if err != nil {
		return 0, nil, err
	}
	defer w.close()
	began := time.Now()
	if posts, err = s.post(ctx, s.set(), 0, n); err != nil {
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

// set is the label of the pods that start started last.
func (s *subject) set() string { return strconv.Itoa(s.run) }

// post posts the pods from first on, before the one with number end, and returns what each took.
func (s *subject) post(ctx context.Context, set string, first, end int) ([]time.Duration, error) {
	posts := make([]time.Duration, end-first)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(applyParallel)
	for i := range posts {
		g.Go(func() error {
			at := time.Now()
			_, err := s.stack.Apply(ctx, namespace, s.manifest(set, first+i))
			posts[i] = time.Since(at)
			return err
		})
	}
	return posts, g.Wait()
}

func (s *subject) manifest(set string, i int) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata:
  name: pod-%s-%d
  labels: {run: "%s"}
spec:
  restartPolicy: Always
  terminationGracePeriodSeconds: %d
  containers:
  - name: app
    image: %s
    args: [sleep, forever]
`, set, i, set, grace, s.image)
}

// remove deletes the pods that start started last, and returns how long it took until all were gone.
func (s *subject) remove(ctx context.Context) (time.Duration, error) {
	return s.removeSet(ctx, s.set())
}

func (s *subject) removeSet(ctx context.Context, set string) (time.Duration, error) {
	w, err := s.watch(ctx, set)
	if err != nil {
		return 0, err
	}
	defer w.close()
	path := fmt.Sprintf("/api/v1/namespaces/%s/pods?labelSelector=run%%3D%s", namespace, set)
	a, err := s.stack.Want(ctx, http.StatusOK, http.MethodGet, path, "", nil)
	if err != nil {
		return 0, err
	}
	var list corev1.PodList
	if err := json.Unmarshal(a.Body, &list); err != nil {
		return 0, err
	}
	began := time.Now()
	if _, err := s.stack.Want(ctx, http.StatusOK, http.MethodDelete, path, "", nil); err != nil {
		return 0, err
	}
	if err := w.waitGone(len(list.Items)); err != nil {
		return 0, err
	}
	return time.Since(began), nil
}

// fullSet is the label of the pods that fill made.
const fullSet = "full"

// fill adds pods until n of its own run.
func (s *subject) fill(ctx context.Context, n int) error {
	if n <= s.filled {
		return nil
	}
	w, err := s.watch(ctx, fullSet)
	if err != nil {
		return err
	}
	defer w.close()
	if _, err := s.post(ctx, fullSet, s.filled, n); err != nil {
		return err
	}
	s.filled = n
	_, err = w.waitRunning(n)
	return err
}

// empty removes what fill made.
func (s *subject) empty(ctx context.Context) error {
	_, err := s.removeSet(ctx, fullSet)
	s.filled = 0
	return err
}

// watch follows the pods of a set.
type watch struct {
	cancel context.CancelFunc
	body   *http.Response
	pods   *json.Decoder
}

func (s *subject) watch(ctx context.Context, set string) (*watch, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.stack.Server()+"/api/v1/namespaces/"+namespace+"/pods?watch=true&labelSelector=run%3D"+set, nil)
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

// next is the next state of a pod; gone: its last one.
func (w *watch) next() (p *corev1.Pod, gone bool, err error) {
	var ev struct {
		Type   string     `json:"type"`
		Object corev1.Pod `json:"object"`
	}
	if err := w.pods.Decode(&ev); err != nil {
		return nil, false, fmt.Errorf("read watch: %w", err)
	}
	if ev.Type == "ERROR" {
		return nil, false, fmt.Errorf("watch ended with an error")
	}
	return &ev.Object, ev.Type == "DELETED", nil
}

// waitRunning waits until n pods have a running container and returns their
// containers' ids.
func (w *watch) waitRunning(n int) ([]string, error) {
	ids := map[string]string{}
	for len(ids) < n {
		p, _, err := w.next()
		if err != nil {
			return nil, fmt.Errorf("%d of %d pods run: %w", len(ids), n, err)
		}
		for _, c := range p.Status.ContainerStatuses {
			if c.State.Running != nil {
				ids[p.Name] = harness.ContainerID(p, c.Name)
			}
		}
	}
	return slices.Collect(maps.Values(ids)), nil
}

// waitGone waits until n pods are gone.
func (w *watch) waitGone(n int) error {
	for seen := 0; seen < n; {
		_, gone, err := w.next()
		if err != nil {
			return fmt.Errorf("%d of %d pods are gone: %w", seen, n, err)
		}
		if gone {
			seen++
		}
	}
	return nil
}
