// Package conformance is the contract of package cri as tests: the fake and the real runtime pass the same ones, so
// that what is tested with the fake holds for the real one.
package conformance

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pod"
)

// Subject is a runtime under test.
type Subject struct {
	// Runtime is the runtime as the node Node sees it; Other is the same as another node sees it.
	Runtime cri.Runtime
	Other   cri.Runtime
	Node    string
	// Image can be pulled and has a busybox shell. MissingImage is in a registry that answers, but not there.
	Image        string
	MissingImage string
	// LogRoot is a directory for pods' logs.
	LogRoot string
	// CgroupParent of the sandboxes.
	CgroupParent string
	// Restart stops and starts the runtime's service, and returns when it answers again. What runs must survive.
	Restart func(t *testing.T)
}

// Scripts that the suite's containers run with sh -c, and how a twin without processes must act them out.
const (
	// ScriptWait runs until the stop signal, then ends with 7.
	ScriptWait = "trap 'exit 7' TERM; sleep 1000 & wait"
	// ScriptIgnore runs and ignores the stop signal.
	ScriptIgnore = "trap '' TERM; while :; do sleep 1000; done"
	// ScriptSucceed and ScriptFail end at once with 0 and 3.
	ScriptSucceed = "exit 0"
	ScriptFail    = "exit 3"
	// ScriptPrint writes the lines hello and world, then runs until the stop signal.
	ScriptPrint = "echo hello; echo world; trap 'exit 7' TERM; sleep 1000 & wait"
	// CommandMissing is a command that the image does not have: the start fails.
	CommandMissing = "/no/such/command"

	// ExecSpeak writes out and err to the two streams and ends with 5.
	ExecSpeak = "echo out; echo err >&2; exit 5"
	// ExecTrue ends with 0.
	ExecTrue = "true"
	// ExecHang runs for a minute, in one process.
	ExecHang = "exec sleep 60"
	// ExecNoneHangs succeeds when no ExecHang runs in the container.
	ExecNoneHangs = "! pgrep -f '[s]leep 60'"
	// ExecFlood writes 20000 bytes.
	ExecFlood = "head -c 20000 /dev/zero"
)

// bound is how long anything in the suite may take.
const bound = 30 * time.Second

// Run runs the suite. The subject is made once; each test has pods of its own and removes them.
func Run(t *testing.T, newSubject func(t *testing.T) Subject) {
	s := newSubject(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, Subject)
	}{
		{"Health", testHealth},
		{"Images", testImages},
		{"SandboxLifecycle", testSandboxLifecycle},
		{"SandboxFilters", testSandboxFilters},
		{"UnknownIDs", testUnknownIDs},
		{"ContainerLifecycle", testContainerLifecycle},
		{"ContainerConflicts", testContainerConflicts},
		{"ContainerStatusFields", testContainerStatusFields},
		{"ExitCodes", testExitCodes},
		{"StopKillsAfterGrace", testStopKillsAfterGrace},
		{"StartFailure", testStartFailure},
		{"MissingImageFailsCreate", testMissingImageFailsCreate},
		{"Logs", testLogs},
		{"ExecSync", testExecSync},
		{"PodStatus", testPodStatus},
		{"RemoveSandboxRemovesContainers", testRemoveSandboxRemovesContainers},
		{"StopSandboxKillsContainers", testStopSandboxKillsContainers},
		{"Ownership", testOwnership},
		{"Events", testEvents},
		{"EventsEnd", testEventsEnd},
		{"Stats", testStats},
		{"UpdateResources", testUpdateResources},
		{"Streaming", testStreaming},
		{"Restart", testRestart},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, s) })
	}
}

// rig is one pod of a test.
type rig struct {
	Subject
	t       *testing.T
	ctx     context.Context
	config  *cri.SandboxConfig
	sandbox string
}

// newRig prepares a pod, but runs nothing. What it makes is removed at the end of the test.
func newRig(t *testing.T, s Subject) *rig {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	uid := strings.ToLower(rand.Text())
	r := &rig{Subject: s, t: t, ctx: ctx, config: &cri.SandboxConfig{
		Name: "pod-" + uid[:8], Namespace: "conformance", UID: uid, Hostname: "host-" + uid[:8],
		LogDirectory: filepath.Join(s.LogRoot, "conformance_"+uid),
		Labels:       map[string]string{"app": "conformance"}, Annotations: map[string]string{pod.AnnotationTraceparent: "00-01-02-01"},
		CgroupParent: s.CgroupParent,
		Security:     cri.SandboxSecurity{Namespaces: cri.Namespaces{PID: cri.NamespaceContainer}},
	}}
	t.Cleanup(func() {
		cancel()
		cleanup, cancel := context.WithTimeout(context.Background(), bound)
		defer cancel()
		sandboxes, err := s.Runtime.ListSandboxes(cleanup, cri.Filter{PodUID: uid})
		if err != nil {
			t.Errorf("clean up: %v", err)
		}
		for _, sb := range sandboxes {
			if err := s.Runtime.RemoveSandbox(cleanup, sb.ID); err != nil {
				t.Errorf("clean up: %v", err)
			}
		}
	})
	return r
}

// run runs the pod's sandbox.
func (r *rig) run() string {
	r.t.Helper()
	id, err := r.Runtime.RunSandbox(r.ctx, r.config)
	if err != nil {
		r.t.Fatalf("run sandbox: %v", err)
	}
	r.sandbox = id
	return id
}

// container describes a container with a script.
func (r *rig) container(name, script string) *cri.ContainerConfig {
	return &cri.ContainerConfig{
		Name: name, Image: cri.ImageSpec{Image: r.Image}, Command: []string{"sh", "-c", script},
		Security: cri.ContainerSecurity{Namespaces: cri.Namespaces{PID: cri.NamespaceContainer}},
	}
}

// create pulls the image when it is not present, and makes the container.
func (r *rig) create(config *cri.ContainerConfig) string {
	r.t.Helper()
	r.pull()
	id, err := r.Runtime.CreateContainer(r.ctx, r.sandbox, config, r.config)
	if err != nil {
		r.t.Fatalf("create container: %v", err)
	}
	return id
}

func (r *rig) pull() {
	r.t.Helper()
	_, err := r.Runtime.ImageStatus(r.ctx, cri.ImageSpec{Image: r.Image})
	if fault.Is(err, fault.NotFound) {
		_, err = r.Runtime.PullImage(r.ctx, cri.ImageSpec{Image: r.Image}, nil, nil)
	}
	if err != nil {
		r.t.Fatalf("image: %v", err)
	}
}

// start makes and starts the container.
func (r *rig) start(config *cri.ContainerConfig) string {
	r.t.Helper()
	id := r.create(config)
	if err := r.Runtime.StartContainer(r.ctx, id); err != nil {
		r.t.Fatalf("start container: %v", err)
	}
	return id
}

func (r *rig) status(id string) pod.Container {
	r.t.Helper()
	c, err := r.Runtime.ContainerStatus(r.ctx, id)
	if err != nil {
		r.t.Fatalf("container status: %v", err)
	}
	return c
}

// until waits until the container has the state.
func (r *rig) until(id string, state pod.ContainerState) pod.Container {
	r.t.Helper()
	var c pod.Container
	r.poll("container "+id+" is "+state.String(), func() bool {
		c = r.status(id)
		return c.State == state
	})
	return c
}

// poll waits for what happens in other processes.
func (r *rig) poll(what string, done func() bool) {
	r.t.Helper()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for !done() {
		select {
		case <-ticker.C:
		case <-r.ctx.Done():
			r.t.Fatalf("%s: not within %s", what, bound)
		}
	}
}

func wantKind(t *testing.T, what string, err error, kind fault.Kind) {
	t.Helper()
	if fault.KindOf(err) != kind {
		t.Errorf("%s: error is %v (kind %v), want kind %v", what, err, fault.KindOf(err), kind)
	}
	var call *cri.CallError
	if kind != fault.None && !errors.As(err, &call) {
		t.Errorf("%s: error %v is no *cri.CallError", what, err)
	}
}

func wantOK(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatalf("make directory: %v", err)
	}
}
