package conformance

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pod"
)

func testImages(t *testing.T, s Subject) {
	r := newRig(t, s)
	_, err := s.Runtime.ImageStatus(r.ctx, cri.ImageSpec{Image: s.MissingImage})
	wantKind(t, "status of a missing image", err, fault.NotFound)

	var imageErr *cri.ImageError
	_, err = s.Runtime.PullImage(r.ctx, cri.ImageSpec{Image: s.MissingImage}, nil, nil)
	wantKind(t, "pull of a missing image", err, fault.NotFound)
	if !errors.As(err, &imageErr) || imageErr.Reason != cri.ReasonErrImagePull || imageErr.Image != s.MissingImage {
		t.Errorf("error is %#v", err)
	}
	_, err = s.Runtime.PullImage(r.ctx, cri.ImageSpec{Image: "Not A Reference"}, nil, nil)
	wantKind(t, "pull of what is no reference", err, fault.Invalid)
	if !errors.As(err, &imageErr) || imageErr.Reason != cri.ReasonInvalidImageName {
		t.Errorf("error is %#v", err)
	}

	ref, err := s.Runtime.PullImage(r.ctx, cri.ImageSpec{Image: s.Image}, nil, r.config)
	wantOK(t, "pull", err)
	image, err := s.Runtime.ImageStatus(r.ctx, cri.ImageSpec{Image: s.Image})
	if err != nil || image.ID == "" || image.Size == 0 || !slices.Contains(image.RepoTags, s.Image) || len(image.RepoDigests) == 0 {
		t.Errorf("image is %+v, %v", image, err)
	}
	for _, other := range []string{ref, image.ID} {
		if same, err := s.Runtime.ImageStatus(r.ctx, cri.ImageSpec{Image: other}); err != nil || same.ID != image.ID {
			t.Errorf("image %s is %+v, %v", other, same, err)
		}
	}
	list, err := s.Runtime.ListImages(r.ctx)
	if err != nil || !slices.ContainsFunc(list, func(i cri.Image) bool { return i.ID == image.ID }) {
		t.Errorf("images are %+v, %v", list, err)
	}
	for range 2 {
		wantOK(t, "remove", s.Runtime.RemoveImage(r.ctx, cri.ImageSpec{Image: image.ID}))
	}
	_, err = s.Runtime.ImageStatus(r.ctx, cri.ImageSpec{Image: s.Image})
	wantKind(t, "status of a removed image", err, fault.NotFound)
	info, err := s.Runtime.ImageFsInfo(r.ctx)
	if err != nil || len(info.Images) == 0 || info.Images[0].Mountpoint == "" {
		t.Errorf("file systems are %+v, %v", info, err)
	}
}

func testExecSync(t *testing.T, s Subject) {
	r := newRig(t, s)
	r.run()
	id := r.start(r.container("c", ScriptWait))
	exec := func(script string, timeout time.Duration) (cri.ExecResult, error) {
		return s.Runtime.ExecSync(r.ctx, id, []string{"sh", "-c", script}, timeout)
	}
	result, err := exec(ExecTrue, 10*time.Second)
	if err != nil || result.ExitCode != 0 || len(result.Stdout) != 0 {
		t.Errorf("true: %+v, %v", result, err)
	}
	var exit *cri.ExitError
	result, err = exec(ExecSpeak, 0)
	if !errors.As(err, &exit) || exit.Code != 5 || string(result.Stdout) != "out\n" || string(result.Stderr) != "err\n" || result.ExitCode != 5 {
		t.Errorf("speak: %+v, %v", result, err)
	}
	result, err = exec(ExecFlood, 10*time.Second)
	if err != nil || len(result.Stdout) != cri.MaxExecOutput || !result.StdoutTruncated {
		t.Errorf("flood: %d bytes, %v", len(result.Stdout), err)
	}
	var timeout *cri.ExecTimeoutError
	start := time.Now()
	if _, err = exec(ExecHang, time.Second); !errors.As(err, &timeout) || !fault.Is(err, fault.DeadlineExceeded) {
		t.Errorf("hang: %v", err)
	}
	if took := time.Since(start); took < time.Second || took > bound/2 {
		t.Errorf("hang took %v", took)
	}
	ctx, cancel := context.WithTimeout(r.ctx, 50*time.Millisecond)
	defer cancel()
	_, err = s.Runtime.ExecSync(ctx, id, []string{"sh", "-c", ExecHang}, 20*time.Second)
	if errors.As(err, &timeout) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("hang until the context's end: %v", err)
	}
	r.poll("commands that did not end in time are killed", func() bool {
		_, err := exec(ExecNoneHangs, 10*time.Second)
		return err == nil
	})
	wantOK(t, "stop", s.Runtime.StopContainer(r.ctx, id, 0))
	if _, err = exec(ExecTrue, time.Second); err == nil || errors.As(err, &exit) || errors.As(err, &timeout) {
		t.Errorf("exec in a stopped container: %v", err)
	}
}

func testPodStatus(t *testing.T, s Subject) {
	r := newRig(t, s)
	r.run()
	first := r.start(r.container("c", ScriptFail))
	r.until(first, pod.ContainerExited)
	next := r.container("c", ScriptWait)
	next.Attempt = 1
	second := r.start(next)
	side := r.create(r.container("side", ScriptWait))

	before := time.Now()
	p, err := s.Runtime.PodStatus(r.ctx, r.config.UID)
	if err != nil || p.UID != r.config.UID || p.Name != r.config.Name || p.Namespace != r.config.Namespace || p.ObservedAt.IsZero() || p.ObservedAt.After(time.Now()) {
		t.Fatalf("pod is %+v, %v", p, err)
	}
	if p.ObservedAt.Before(before.Add(-time.Second)) {
		t.Errorf("observed at %v, asked at %v", p.ObservedAt, before)
	}
	if len(p.Sandboxes) != 1 || len(p.Containers) != 3 || len(p.IPs()) == 0 {
		t.Fatalf("pod is %+v", p)
	}
	if c := p.Newest("c"); c.ID != second || c.State != pod.ContainerRunning || c.SandboxID != r.sandbox || c.StartedAt.IsZero() {
		t.Errorf("newest c is %+v", c)
	}
	if c := p.Container(first); c.ExitCode != 3 || c.State != pod.ContainerExited {
		t.Errorf("first c is %+v", c)
	}
	if c := p.Newest("side"); c.ID != side || c.State != pod.ContainerCreated {
		t.Errorf("side is %+v", c)
	}
	pods, err := s.Runtime.ListPods(r.ctx, cri.Filter{})
	wantOK(t, "list pods", err)
	i := slices.IndexFunc(pods, func(p pod.RuntimePod) bool { return p.UID == r.config.UID })
	if i < 0 || len(pods[i].Containers) != 3 || pods[i].Newest("c").ID != second || pods[i].ReadySandbox() == nil {
		t.Errorf("pods are %+v", pods)
	}
}

func testEvents(t *testing.T, s Subject) {
	r := newRig(t, s)
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	stream, err := s.Runtime.Events(ctx)
	if err != nil {
		t.Fatalf("events: %v", err)
	}
	defer stream.Close()
	r.awaitStream(stream)

	r.run()
	id := r.start(r.container("c", ScriptWait))
	r.armed(id)
	wantOK(t, "stop container", s.Runtime.StopContainer(r.ctx, id, 10*time.Second))
	wantOK(t, "remove container", s.Runtime.RemoveContainer(r.ctx, id))
	wantOK(t, "stop sandbox", s.Runtime.StopSandbox(r.ctx, r.sandbox))
	wantOK(t, "remove sandbox", s.Runtime.RemoveSandbox(r.ctx, r.sandbox))

	var container, sandbox []string
	for !slices.Contains(container, "Deleted") || !slices.Contains(sandbox, "Deleted") {
		e, err := stream.Recv()
		if err != nil {
			t.Fatalf("receive: %v after %v and %v", err, container, sandbox)
		}
		if e.Sandbox != nil && e.PodUID() != r.config.UID {
			continue
		}
		if e.At.IsZero() {
			t.Errorf("event without time: %+v", e)
		}
		switch e.ID {
		case id:
			container = append(container, e.Type.String())
			checkContainerEvent(t, e)
		case r.sandbox:
			sandbox = append(sandbox, e.Type.String())
		}
	}
	if got := strings.Join(container, " "); got != "Created Started Stopped Deleted" {
		t.Errorf("events of the container are %s", got)
	}
	if got := strings.Join(sandbox, " "); got != "Created Started Stopped Deleted" {
		t.Errorf("events of the sandbox are %s", got)
	}
}

// checkContainerEvent looks at what an event carries of the container.
func checkContainerEvent(t *testing.T, e cri.Event) {
	t.Helper()
	if e.IsSandbox() {
		t.Errorf("a container's event says that it is the sandbox's: %+v", e)
	}
	c := e.Container()
	switch {
	case c == nil: // optional
	case c.SandboxID != e.Sandbox.ID || c.PodUID != e.Sandbox.UID:
		t.Errorf("%v: container %+v does not belong to sandbox %+v", e.Type, c, e.Sandbox)
	case e.Type == cri.EventStopped && (c.State != pod.ContainerExited || c.ExitCode != 7):
		t.Errorf("stopped container is %+v", c)
	}
}

// awaitStream makes sandboxes of another pod until the stream tells of one: the runtime does not say when it begins.
func (r *rig) awaitStream(stream cri.EventStream) {
	r.t.Helper()
	seen := make(chan error, 1)
	go func() {
		_, err := stream.Recv()
		seen <- err
	}()
	probe := newRig(r.t, r.Subject)
	for attempt := uint32(0); ; attempt++ {
		probe.config.Attempt = attempt
		probe.run()
		select {
		case err := <-seen:
			if err != nil {
				r.t.Fatalf("receive: %v", err)
			}
			return
		case <-time.After(time.Second):
		case <-r.ctx.Done():
			r.t.Fatal("the stream tells of nothing")
		}
	}
}

func testEventsEnd(t *testing.T, s Subject) {
	r := newRig(t, s)
	stream, err := s.Runtime.Events(r.ctx)
	if err != nil {
		t.Fatalf("events: %v", err)
	}
	ended := make(chan error, 1)
	go func() {
		for {
			if _, err := stream.Recv(); err != nil {
				ended <- err
				return
			}
		}
	}()
	stream.Close()
	select {
	case err := <-ended:
		if errors.Is(err, io.EOF) || !errors.Is(err, context.Canceled) {
			t.Errorf("a closed stream ended with %v", err)
		}
	case <-r.ctx.Done():
		t.Error("a closed stream did not end")
	}
}

func testStats(t *testing.T, s Subject) {
	r := newRig(t, s)
	r.run()
	id := r.start(r.container("c", ScriptWait))
	c, err := s.Runtime.ContainerStats(r.ctx, id)
	if err != nil || c.ID != id || c.Name != "c" || c.PodUID != r.config.UID || c.Memory == nil || c.Memory.WorkingSet == nil || c.CPU == nil {
		t.Errorf("stats are %+v, %v", c, err)
	}
	list, err := s.Runtime.ListContainerStats(r.ctx, cri.Filter{PodUID: r.config.UID})
	if err != nil || len(list) != 1 || list[0].ID != id {
		t.Errorf("stats are %+v, %v", list, err)
	}
	pods, err := s.Runtime.ListPodStats(r.ctx, cri.Filter{PodUID: r.config.UID})
	if err != nil || len(pods) != 1 || pods[0].SandboxID != r.sandbox || pods[0].UID != r.config.UID || pods[0].Name != r.config.Name || pods[0].Memory == nil {
		t.Fatalf("stats are %+v, %v", pods, err)
	}
	if len(pods[0].Containers) != 1 || pods[0].Containers[0].ID != id || pods[0].Memory.At.IsZero() {
		t.Errorf("stats are %+v", pods[0])
	}
}

func testStreaming(t *testing.T, s Subject) {
	r := newRig(t, s)
	r.run()
	id := r.start(r.container("c", ScriptWait))
	for name, get := range map[string]func() (string, error){
		"exec": func() (string, error) {
			return s.Runtime.ExecURL(r.ctx, id, []string{"true"}, cri.Streams{Stdout: true})
		},
		"attach":       func() (string, error) { return s.Runtime.AttachURL(r.ctx, id, cri.Streams{Stdout: true}) },
		"port forward": func() (string, error) { return s.Runtime.PortForwardURL(r.ctx, r.sandbox, []int32{80}) },
	} {
		if url, err := get(); err != nil || !strings.HasPrefix(url, "http") {
			t.Errorf("%s: %q, %v", name, url, err)
		}
	}
}
