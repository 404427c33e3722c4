package runtime

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/services/syncd/internal/plan"
	"github.com/podplane/podplane/services/syncd/internal/worker"
)

const (
	hookUserAgent   = "kube-lifecycle/1.36"
	hookBodyLimit   = 10 << 10
	hookMaxRedirect = 10
)

// PostStart runs the container's postStart hook, if there is one.
func (e *Executor) PostStart(ctx context.Context, p *v1.Pod, container, id, podIP string) error {
	c, err := find(p, container)
	if err != nil || c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return err
	}
	return e.runHook(ctx, c.Lifecycle.PostStart, hookTarget{pod: p, spec: c, id: id, ip: podIP}, 0)
}

// KillContainer runs the preStop hook and stops the container, both within the grace period.
func (e *Executor) KillContainer(ctx context.Context, r worker.KillRequest) error {
	grace := r.Grace
	if !r.NoHook && grace > 0 {
		grace -= e.preStop(ctx, r)
		grace = max(grace, plan.MinGrace)
	}
	return e.cri.StopContainer(ctx, r.ID, grace)
}

// preStop runs the hook for at most the grace period and returns the whole seconds that it took. Its failure does not keep the container from being stopped.
func (e *Executor) preStop(ctx context.Context, r worker.KillRequest) time.Duration {
	c, err := find(r.Pod, r.Container)
	if err != nil || c.Lifecycle == nil || c.Lifecycle.PreStop == nil {
		return 0
	}
	began := e.now()
	hookCtx, cancel := context.WithTimeout(ctx, r.Grace)
	defer cancel()
	if err := e.runHook(hookCtx, c.Lifecycle.PreStop, hookTarget{pod: r.Pod, spec: c, id: r.ID, ip: r.PodIP}, r.Grace); err != nil && ctx.Err() == nil {
		e.events.PodEvent(r.Pod, r.Container, v1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed: "+err.Error())
	}
	return e.now().Sub(began).Truncate(time.Second)
}

type hookTarget struct {
	pod  *v1.Pod
	spec *v1.Container
	id   string
	ip   string
}

// runHook runs one handler. timeout bounds a command in the runtime as well; 0: the context alone.
func (e *Executor) runHook(ctx context.Context, h *v1.LifecycleHandler, t hookTarget, timeout time.Duration) error {
	switch {
	case h.Exec != nil:
		result, err := e.cri.ExecSync(ctx, t.id, h.Exec.Command, timeout)
		if exit, ok := errors.AsType[*cri.ExitError](err); ok {
			return fmt.Errorf("command %q exited with %d: %s", strings.Join(h.Exec.Command, " "), exit.Code, tail(result.Stdout, result.Stderr))
		}
		return err
	case h.HTTPGet != nil:
		return e.httpHook(ctx, h.HTTPGet, t)
	case h.Sleep != nil:
		timer := time.NewTimer(time.Duration(h.Sleep.Seconds) * time.Second)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("container terminated before sleep hook finished: %w", ctx.Err())
		}
	}
	return errors.New("invalid handler: exec, httpGet and sleep are supported")
}

// tail keeps an error message short.
func tail(outputs ...[]byte) string {
	const limit = 512
	var b strings.Builder
	for _, o := range outputs {
		b.Write(o[max(0, len(o)-limit):])
	}
	return strings.ToValidUTF8(strings.TrimSpace(b.String()), "?")
}

func hookClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // #nosec G402 -- as Kubernetes: hooks do not verify the pod's certificate
			DisableKeepAlives: true, DisableCompression: true, Proxy: nil,
		},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if len(via) >= hookMaxRedirect {
				return fmt.Errorf("stopped after %d redirects", hookMaxRedirect)
			}
			if req.URL.Hostname() != via[0].URL.Hostname() {
				return http.ErrUseLastResponse
			}
			return nil
		},
	}
}

// httpHook sends one request. Only the lack of an answer is a failure; the answer's code does not count.
func (e *Executor) httpHook(ctx context.Context, get *v1.HTTPGetAction, t hookTarget) error {
	port, err := resolvePort(get.Port, t.spec)
	if err != nil {
		return err
	}
	host := get.Host
	if host == "" {
		host = t.ip
	}
	if host == "" {
		return errors.New("failed to find the pod's IP for the hook")
	}
	u, err := url.Parse(get.Path)
	if err != nil {
		u = &url.URL{Path: get.Path}
	}
	u.Scheme = "http"
	if get.Scheme != "" {
		u.Scheme = strings.ToLower(string(get.Scheme))
	}
	u.Host = net.JoinHostPort(host, strconv.Itoa(port))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return fmt.Errorf("make the hook's request: %w", err)
	}
	req.Header.Set("User-Agent", hookUserAgent)
	req.Header.Set("Accept", "*/*")
	for _, h := range get.HTTPHeaders {
		if http.CanonicalHeaderKey(h.Name) == "Host" {
			req.Host = h.Value
			continue
		}
		req.Header.Add(h.Name, h.Value)
	}
	res, err := e.client.Do(req)
	if errors.Is(err, http.ErrSchemeMismatch) {
		if res, err = e.client.Do(withoutTLS(req)); err == nil {
			e.events.PodEvent(t.pod, t.spec.Name, v1.EventTypeWarning, "LifecycleHTTPFallback",
				fmt.Sprintf("request to HTTPS lifecycle hook %s got HTTP response, retry with HTTP succeeded", u.Host))
		}
	}
	if err != nil {
		return fmt.Errorf("send the hook's request: %w", err)
	}
	defer res.Body.Close()
	_, _ = io.CopyN(io.Discard, res.Body, hookBodyLimit) // what the answer says does not matter
	return nil
}

// withoutTLS is the request for a server that turned out to speak plain HTTP: what is for nobody else's eyes is left out.
func withoutTLS(req *http.Request) *http.Request {
	plain := req.Clone(req.Context())
	plain.URL.Scheme = "http"
	plain.Header.Del("Authorization")
	return plain
}

func resolvePort(p intstr.IntOrString, c *v1.Container) (int, error) {
	if p.Type == intstr.Int {
		return p.IntValue(), nil
	}
	for _, port := range c.Ports {
		if port.Name == p.StrVal {
			return int(port.ContainerPort), nil
		}
	}
	n, err := strconv.Atoi(p.StrVal)
	if err != nil {
		return 0, fmt.Errorf("container %s has no port %q", c.Name, p.StrVal)
	}
	return n, nil
}
