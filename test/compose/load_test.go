//go:build compose

package compose_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const loadPod = `
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: scratch, emptyDir: {}}]
  containers:
  - name: app
    image: podplane.local/demo:1
    volumeMounts: [{name: scratch, mountPath: /scratch}]
    readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
`

const (
	podsPath = "/api/v1/namespaces/default/pods"
	lanes    = 6
	podLife  = 2 * time.Minute
	pollWait = 100 * time.Millisecond
)

// load creates and deletes pods until it is told to end.
type load struct {
	wg      sync.WaitGroup
	ending  chan struct{}
	lives   atomic.Int32
	mu      sync.Mutex
	errs    []error
	stopped sync.Once
}

func startLoad(ctx context.Context, t *testing.T, name string) *load {
	l := &load{ending: make(chan struct{})}
	for lane := range lanes {
		l.wg.Go(func() {
			for i := 0; !l.isEnding(); i++ {
				if err := onePod(ctx, fmt.Sprintf("%s-%d-%d", name, lane, i)); err != nil {
					l.mu.Lock()
					l.errs = append(l.errs, err)
					l.mu.Unlock()
					return
				}
				l.lives.Add(1)
			}
		})
	}
	t.Cleanup(l.end)
	return l
}

func (l *load) isEnding() bool {
	select {
	case <-l.ending:
		return true
	default:
		return false
	}
}

// end lets the pods that live come to their ends.
func (l *load) end() {
	l.stopped.Do(func() { close(l.ending) })
	l.wg.Wait()
}

// finish waits until at least so many pods have lived, and none goes on.
func (l *load) finish(ctx context.Context, t *testing.T, count int) {
	t.Helper()
	_ = until(ctx, func() error { // what has failed is told below
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.errs) == 0 && int(l.lives.Load()) < count {
			return errors.New("not yet")
		}
		return nil
	})
	l.end()
	if err := errors.Join(l.errs...); err != nil {
		t.Error(err)
	}
	if n := int(l.lives.Load()); n < count {
		t.Errorf("%d pods lived, want %d", n, count)
	}
	t.Logf("%d pods lived meanwhile", l.lives.Load())
}

// onePod lives a pod's life, in which one container is started once.
func onePod(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, podLife)
	defer cancel()
	if err := until(ctx, func() error {
		code, body, err := ask(ctx, http.MethodPost, podsPath, fmt.Sprintf(loadPod, name))
		if err == nil && code != http.StatusCreated && code != http.StatusConflict { // conflict: an answer was lost
			err = fmt.Errorf("%d: %s", code, body)
		}
		return err
	}); err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	uid := ""
	if err := until(ctx, func() error {
		p, err := lookAt(ctx, name)
		switch {
		case err != nil:
			return err
		case p == nil && uid != "":
			return permanent{fmt.Errorf("pod %s is lost", name)}
		case p == nil:
			return errors.New("not seen yet")
		}
		uid = string(p.UID)
		return isReady(p)
	}); err != nil {
		return fmt.Errorf("%s does not become ready: %w", name, err)
	}
	if err := until(ctx, func() error {
		code, body, err := ask(ctx, http.MethodDelete, podsPath+"/"+name, "")
		if err == nil && code/100 != 2 && code != http.StatusNotFound {
			err = fmt.Errorf("%d: %s", code, body)
		}
		return err
	}); err != nil {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	if err := until(ctx, func() error {
		if p, err := lookAt(ctx, name); err != nil || p != nil {
			return fmt.Errorf("still there: %w", err)
		}
		return nil
	}); err != nil {
		return fmt.Errorf("%s does not go: %w", name, err)
	}
	if err := until(ctx, func() error { return startedOnce(ctx, uid) }); err != nil {
		return fmt.Errorf("%s (%s): %w", name, uid, err)
	}
	return nil
}

// startedOnce reads in the journal that one container of a pod was started and died, once. One whose start was cut off with the
// process that asked for it never ran: it has an end, but no start.
func startedOnce(ctx context.Context, uid string) error {
	code, body, err := ask(ctx, http.MethodGet, "/podplane/v1/lifecycle?uid="+uid, "")
	if err != nil || code != http.StatusOK {
		return fmt.Errorf("journal: %d: %w", code, err)
	}
	started, died := map[string]int{}, map[string]int{}
	lines := bufio.NewScanner(strings.NewReader(body))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct {
			Event struct{ Type, ContainerID string }
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return permanent{fmt.Errorf("journal: %q: %w", lines.Text(), err)}
		}
		switch e := line.Event; e.Type {
		case "LIFECYCLE_TYPE_CONTAINER_STARTED":
			started[e.ContainerID]++
		case "LIFECYCLE_TYPE_CONTAINER_DIED":
			died[e.ContainerID]++
		}
	}
	for id, n := range started {
		if len(started) > 1 || n > 1 || died[id] > 1 {
			return permanent{fmt.Errorf("containers were started more than once: %s", body)}
		}
		if died[id] == 1 {
			return nil
		}
	}
	return fmt.Errorf("the journal has %d starts and %d ends", len(started), len(died))
}

// permanent is an error that waiting does not mend.
type permanent struct{ error }

// until calls f until it is content, or its error is permanent, or ctx ends.
func until(ctx context.Context, f func() error) error {
	tick := time.NewTicker(pollWait)
	defer tick.Stop()
	for {
		err := f()
		if _, ok := errors.AsType[permanent](err); err == nil || ok {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// lookAt gets a pod; nil when it is not there.
func lookAt(ctx context.Context, name string) (*corev1.Pod, error) {
	code, body, err := ask(ctx, http.MethodGet, podsPath+"/"+name, "")
	switch {
	case err != nil:
		return nil, err
	case code == http.StatusNotFound:
		return nil, nil
	case code != http.StatusOK:
		return nil, fmt.Errorf("%d: %s", code, body)
	}
	p := new(corev1.Pod)
	return p, json.Unmarshal([]byte(body), p)
}

func isReady(p *corev1.Pod) error {
	if i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady }); i < 0 || p.Status.Conditions[i].Status != corev1.ConditionTrue {
		return fmt.Errorf("%s, %+v", p.Status.Phase, p.Status.Conditions)
	}
	return nil
}

// doors are the published ports of gateway's replicas. They change with the replicas.
var doors struct {
	sync.Mutex
	urls []string
	turn int
}

// ask makes one request to one of gateway's replicas, a different one each time. After an error the next one looks for them anew.
func ask(ctx context.Context, method, path, body string) (code int, answer string, err error) {
	url, err := door(ctx)
	if err != nil {
		return 0, "", err
	}
	req, err := http.NewRequestWithContext(ctx, method, url+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/yaml")
	}
	var content []byte
	resp, err := http.DefaultClient.Do(req)
	if err == nil {
		defer func() { _ = resp.Body.Close() }()
		content, err = io.ReadAll(resp.Body)
	}
	if err != nil {
		doors.Lock()
		doors.urls = nil
		doors.Unlock()
		return 0, "", err
	}
	return resp.StatusCode, string(content), nil
}

func door(ctx context.Context) (string, error) {
	doors.Lock()
	defer doors.Unlock()
	if len(doors.urls) == 0 {
		out, err := docker(ctx, "ps", "--filter", "label=com.docker.compose.service=gateway", "--format", "{{.Ports}}")
		if err != nil {
			return "", err
		}
		for _, mapping := range strings.FieldsFunc(out, func(r rune) bool { return r == ',' || r == '\n' || r == ' ' }) {
			if host, _, ok := strings.Cut(mapping, "->8080/tcp"); ok {
				doors.urls = append(doors.urls, "http://"+host)
			}
		}
		if len(doors.urls) == 0 { // it is in the host's network, or on its way
			return gateway, nil
		}
	}
	doors.turn++
	return doors.urls[doors.turn%len(doors.urls)], nil
}
