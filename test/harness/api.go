package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Answer is what the REST API answered.
type Answer struct {
	Code   int
	Header http.Header
	Body   []byte
}

var client = &http.Client{Timeout: 60 * time.Second}

// Call sends a request to the REST API. An answer of any code is an Answer;
// only a broken connection is an error.
func (s *Stack) Call(ctx context.Context, method, path, contentType string, body []byte) (Answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.Server()+path, bytes.NewReader(body))
	if err != nil {
		return Answer{}, err
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return Answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return Answer{}, fmt.Errorf("read answer to %s %s: %w", method, path, err)
	}
	return Answer{Code: resp.StatusCode, Header: resp.Header, Body: data}, nil
}

// Want calls and fails unless the answer has the wanted code.
func (s *Stack) Want(ctx context.Context, code int, method, path, contentType string, body []byte) (Answer, error) {
	a, err := s.Call(ctx, method, path, contentType, body)
	if err != nil {
		return a, err
	}
	if a.Code != code {
		return a, fmt.Errorf("%s %s: %d, want %d: %s", method, path, a.Code, code, bytes.TrimSpace(a.Body))
	}
	return a, nil
}

// Apply posts a manifest in YAML and returns the pod as stored.
func (s *Stack) Apply(ctx context.Context, namespace, manifest string) (*corev1.Pod, error) {
	a, err := s.Want(ctx, http.StatusCreated, http.MethodPost, podsPath(namespace), "application/yaml", []byte(manifest))
	if err != nil {
		return nil, err
	}
	return decodePod(a.Body)
}

// Pod gets a pod; nil without an error when it is not there.
func (s *Stack) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	a, err := s.Call(ctx, http.MethodGet, podsPath(namespace)+"/"+name, "", nil)
	if err != nil {
		return nil, err
	}
	switch a.Code {
	case http.StatusOK:
		return decodePod(a.Body)
	case http.StatusNotFound:
		return nil, nil
	default:
		return nil, fmt.Errorf("get pod %s/%s: %d: %s", namespace, name, a.Code, bytes.TrimSpace(a.Body))
	}
}

// Delete deletes a pod with the given grace in seconds; -1: the pod's own.
func (s *Stack) Delete(ctx context.Context, namespace, name string, grace int) error {
	path := podsPath(namespace) + "/" + name
	if grace >= 0 {
		path += fmt.Sprintf("?gracePeriodSeconds=%d", grace)
	}
	_, err := s.Want(ctx, http.StatusOK, http.MethodDelete, path, "", nil)
	return err
}

// Log is a container's log.
func (s *Stack) Log(ctx context.Context, namespace, name, query string) (string, error) {
	a, err := s.Want(ctx, http.StatusOK, http.MethodGet, podsPath(namespace)+"/"+name+"/log?"+query, "", nil)
	return string(a.Body), err
}

// WaitPod waits until cond holds for the pod (nil: it is gone) and returns it.
// The error names what was waited for and the pod's last state.
func (s *Stack) WaitPod(ctx context.Context, namespace, name, what string, cond func(*corev1.Pod) bool) (*corev1.Pod, error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last *corev1.Pod
	var lastErr error
	for {
		p, err := s.Pod(ctx, namespace, name)
		if err == nil {
			last = p
			if cond(p) {
				return p, nil
			}
		} else if ctx.Err() == nil {
			lastErr = err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("pod %s/%s: waited until it %s: %w; last error: %v; last seen: %s\n%s\n%s", namespace, name, what, ctx.Err(), lastErr, describe(last),
				s.Explain(ctx, namespace, name), s.Logs())
		case <-tick.C:
		}
	}
}

// WaitReady waits until the pod is Ready.
func (s *Stack) WaitReady(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return s.WaitPod(ctx, namespace, name, "is Ready", IsReady)
}

// WaitGone waits until the pod is not there any more.
func (s *Stack) WaitGone(ctx context.Context, namespace, name string) error {
	_, err := s.WaitPod(ctx, namespace, name, "is gone", func(p *corev1.Pod) bool { return p == nil })
	return err
}

// IsReady says whether a pod's Ready condition is True.
func IsReady(p *corev1.Pod) bool { return Condition(p, corev1.PodReady) == corev1.ConditionTrue }

// Condition is a pod's condition; empty when it has none of that type.
func Condition(p *corev1.Pod, t corev1.PodConditionType) corev1.ConditionStatus {
	if p == nil {
		return ""
	}
	for _, c := range p.Status.Conditions {
		if c.Type == t {
			return c.Status
		}
	}
	return ""
}

// ContainerID is the CRI id of a pod's container, without the runtime's name.
func ContainerID(p *corev1.Pod, container string) string {
	for _, c := range p.Status.ContainerStatuses {
		if c.Name == container {
			_, id, _ := strings.Cut(c.ContainerID, "://")
			return id
		}
	}
	return ""
}

func podsPath(namespace string) string { return "/api/v1/namespaces/" + namespace + "/pods" }

func decodePod(data []byte) (*corev1.Pod, error) {
	var p corev1.Pod
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, fmt.Errorf("decode pod: %w", err)
	}
	return &p, nil
}

func describe(p *corev1.Pod) string {
	if p == nil {
		return "not there"
	}
	data, err := json.Marshal(p.Status)
	if err != nil {
		return err.Error()
	}
	return string(data)
}
