package corpus_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"

	"github.com/podplane/podplane/test/harness"
)

// want is a document of kind Want: what must become true of the pod that was posted last.
type want struct {
	Kind string `json:"kind"`
	// Code is that of the answer to the document before, Says what its message must contain. Alone, they end the step.
	Code int      `json:"code"`
	Says []string `json:"says"`
	// Pod is the part of the pod's JSON that is looked at; see match.
	Pod any `json:"pod"`
	// Logs of containers, the present instance's; Previous those of the instance before.
	Logs     map[string]any `json:"logs"`
	Previous map[string]any `json:"previous"`
	// Events are reasons, or "Reason: pattern of the message".
	Events []string `json:"events"`
	// Cgroups has files of the pod's cgroup (key pod) and of those of its containers, by the version of the host's cgroups.
	Cgroups struct {
		V1 map[string]map[string]any `json:"v1"`
		V2 map[string]map[string]any `json:"v2"`
	} `json:"cgroups"`
	// Gone: the pod is not there any more.
	Gone bool `json:"gone"`
}

// change is a document of kind Change: a change of the pod that was posted last.
type change struct {
	Kind        string          `json:"kind"`
	Subresource string          `json:"subresource"`
	Patch       json.RawMessage `json:"patch"`
}

// remove is a document of kind Delete.
type remove struct {
	Kind               string `json:"kind"`
	GracePeriodSeconds *int   `json:"gracePeriodSeconds"`
}

// run is the state of one case.
type run struct {
	*stack
	namespace string
	// pod is the name of the pod that was posted last, uid its UID.
	pod, uid string
	// answer is that to the last request; pending says that nobody looked at it yet.
	answer  harness.Answer
	good    int
	pending bool
}

func runFile(ctx context.Context, s *stack, file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	data = bytes.ReplaceAll(data, []byte("$PORT"), []byte(port))
	data = bytes.ReplaceAll(data, []byte("$REGISTRY"), []byte(s.node.Registry.Host))
	ipc, err := os.Readlink("/proc/self/ns/ipc")
	if err != nil {
		return err
	}
	data = bytes.ReplaceAll(data, []byte("$IPC"), []byte(ipc))
	values, err := machine()
	if err != nil {
		return err
	}
	for name, value := range values {
		data = bytes.ReplaceAll(data, []byte("$"+name), []byte(value))
	}
	r := &run{stack: s, namespace: "c-" + caseName(file)}
	for i, doc := range bytes.Split(data, []byte("\n---\n")) {
		if len(bytes.TrimSpace(doc)) == 0 {
			continue
		}
		if err := r.step(ctx, doc); err != nil {
			return fmt.Errorf("document %d: %w", i+1, err)
		}
	}
	if err := r.settled(); err != nil {
		return err
	}
	// What is over makes room for others: a machine with one processor can't give all cases what they ask for at once.
	_, err = r.Want(ctx, http.StatusOK, http.MethodDelete, r.path("pods"), "", nil)
	return err
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, errors.Join(err, l.Close())
}

// settled fails when a request was refused and no Want says so.
func (r *run) settled() error {
	if r.pending && r.answer.Code != r.good {
		return fmt.Errorf("answer %d, want %d: %s", r.answer.Code, r.good, r.answer.Body)
	}
	r.pending = false
	return nil
}

func (r *run) step(ctx context.Context, doc []byte) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	data, err := yaml.YAMLToJSON(doc)
	if err != nil {
		return err
	}
	var o struct {
		Kind     string `json:"kind"`
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(data, &o); err != nil {
		return err
	}
	if o.Kind == "Want" {
		var w want
		if err := yaml.UnmarshalStrict(doc, &w); err != nil {
			return err
		}
		return r.want(ctx, &w)
	}
	if err := r.settled(); err != nil {
		return err
	}
	switch o.Kind {
	case "Change":
		var c change
		if err := yaml.UnmarshalStrict(doc, &c); err != nil {
			return err
		}
		return r.change(ctx, &c)
	case "Delete":
		var d remove
		if err := yaml.UnmarshalStrict(doc, &d); err != nil {
			return err
		}
		path := r.podPath()
		if d.GracePeriodSeconds != nil {
			path += fmt.Sprintf("?gracePeriodSeconds=%d", *d.GracePeriodSeconds)
		}
		return r.send(ctx, http.StatusOK, http.MethodDelete, path, nil)
	case "Pod":
		r.pod = o.Metadata.Name
	}
	if err := r.send(ctx, http.StatusCreated, http.MethodPost, r.path(strings.ToLower(o.Kind)+"s"), data); err != nil {
		return err
	}
	if o.Kind == "Pod" && r.answer.Code == http.StatusCreated {
		var p corev1.Pod
		if err := json.Unmarshal(r.answer.Body, &p); err != nil {
			return err
		}
		r.uid = string(p.UID)
	}
	return nil
}

func (r *run) path(resource string) string {
	return "/api/v1/namespaces/" + r.namespace + "/" + resource
}

func (r *run) podPath() string { return r.path("pods") + "/" + r.pod }

func (r *run) send(ctx context.Context, good int, method, path string, body []byte) error {
	contentType := ""
	if body != nil {
		contentType = "application/json"
	}
	a, err := r.Call(ctx, method, path, contentType, body)
	r.answer, r.good, r.pending = a, good, true
	return err
}

// change merges the patch into the pod as it is and stores that, again when the pod has changed meanwhile.
func (r *run) change(ctx context.Context, c *change) error {
	for {
		err := r.changeOnce(ctx, c)
		if err != nil || r.answer.Code != http.StatusConflict || ctx.Err() != nil {
			return err
		}
	}
}

func (r *run) changeOnce(ctx context.Context, c *change) error {
	path := r.podPath()
	a, err := r.Want(ctx, http.StatusOK, http.MethodGet, path, "", nil)
	if err != nil {
		return err
	}
	patched, err := strategicpatch.StrategicMergePatch(a.Body, c.Patch, corev1.Pod{})
	if err != nil {
		return fmt.Errorf("apply the patch: %w", err)
	}
	if c.Subresource != "" {
		path += "/" + c.Subresource
	}
	return r.send(ctx, http.StatusOK, http.MethodPut, path, patched)
}

// want waits until everything that the document says is true.
func (r *run) want(ctx context.Context, w *want) error {
	if w.Code != 0 {
		if !r.pending {
			return fmt.Errorf("the case wants the answer %d where none is due: the Want has to follow its request", w.Code)
		}
		r.good = w.Code
	}
	if err := r.settled(); err != nil {
		return err
	}
	for _, s := range w.Says {
		if !strings.Contains(string(r.answer.Body), s) {
			return fmt.Errorf("the answer does not say %q: %s", s, r.answer.Body)
		}
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := r.check(ctx, w)
		if err == nil {
			return nil
		}
		// That the time is over says less than what was wrong before.
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return last
		case <-tick.C:
		}
	}
}

func (r *run) check(ctx context.Context, w *want) error {
	if w.Pod == nil && !w.Gone && w.Logs == nil && w.Previous == nil && w.Events == nil && w.Cgroups.V1 == nil && w.Cgroups.V2 == nil {
		return nil
	}
	a, err := r.Call(ctx, http.MethodGet, r.podPath(), "", nil)
	if err != nil {
		return err
	}
	if w.Gone {
		if a.Code != http.StatusNotFound {
			return fmt.Errorf("the pod is still there: %s", a.Body)
		}
		return r.checkEvents(ctx, w.Events)
	}
	var p any
	if err := json.Unmarshal(a.Body, &p); err != nil {
		return err
	}
	if err := match("pod", w.Pod, p); err != nil {
		return fmt.Errorf("%w in %s", err, a.Body)
	}
	for _, l := range []struct {
		logs  map[string]any
		query string
	}{{w.Logs, ""}, {w.Previous, "&previous=true"}} {
		for name, text := range l.logs {
			log, err := r.Log(ctx, r.namespace, r.pod, "container="+name+l.query)
			if err != nil {
				return err
			}
			if err := match("log of "+name, text, log); err != nil {
				return err
			}
		}
	}
	if err := r.checkCgroups(w, a.Body); err != nil {
		return err
	}
	return r.checkEvents(ctx, w.Events)
}

// checkEvents looks for an Event of each reason, and with a message where that is given.
func (r *run) checkEvents(ctx context.Context, wanted []string) error {
	if len(wanted) == 0 {
		return nil
	}
	a, err := r.Want(ctx, http.StatusOK, http.MethodGet, r.path("events"), "", nil)
	if err != nil {
		return err
	}
	var l corev1.EventList
	if err := json.Unmarshal(a.Body, &l); err != nil {
		return err
	}
	for _, w := range wanted {
		reason, pattern, _ := strings.Cut(w, ": ")
		found, seen := false, ""
		for _, e := range l.Items {
			found = found || (e.Reason == reason && matches(pattern, e.Message))
			seen += "\n" + e.Reason + ": " + e.Message
		}
		if !found {
			return fmt.Errorf("no Event %q among:%s", w, seen)
		}
	}
	return nil
}
