package conformance

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pod"
)

func testContainerLifecycle(t *testing.T, s Subject) {
	r := newRig(t, s)
	r.run()
	id := r.create(r.container("c", ScriptWait))
	if c := r.status(id); c.State != pod.ContainerCreated || !c.StartedAt.IsZero() || !c.FinishedAt.IsZero() || c.CreatedAt.IsZero() {
		t.Errorf("created container is %+v", c)
	}
	wantOK(t, "stop of the created", s.Runtime.StopContainer(r.ctx, id, time.Second))
	if c := r.status(id); c.State != pod.ContainerCreated {
		t.Errorf("created container is in state %v after a stop", c.State)
	}
	wantOK(t, "start", s.Runtime.StartContainer(r.ctx, id))
	if c := r.status(id); c.State != pod.ContainerRunning || c.StartedAt.Before(c.CreatedAt) || !c.FinishedAt.IsZero() {
		t.Errorf("running container is %+v", c)
	}
	if err := s.Runtime.StartContainer(r.ctx, id); err == nil {
		t.Error("a running container was started")
	}
	r.armed(id)
	for range 2 {
		wantOK(t, "stop", s.Runtime.StopContainer(r.ctx, id, 10*time.Second))
		c := r.status(id)
		if c.State != pod.ContainerExited || c.ExitCode != 7 || c.Reason != "Error" || c.FinishedAt.Before(c.StartedAt.Add(-clockSlack)) {
			t.Errorf("stopped container is %+v", c)
		}
	}
	if err := s.Runtime.StartContainer(r.ctx, id); err == nil {
		t.Error("an exited container was started")
	}
	for range 2 {
		wantOK(t, "remove", s.Runtime.RemoveContainer(r.ctx, id))
	}
	_, err := s.Runtime.ContainerStatus(r.ctx, id)
	wantKind(t, "status of the removed", err, fault.NotFound)

	running := r.start(r.container("c", ScriptIgnore)) // the name is free again
	wantOK(t, "remove of the running", s.Runtime.RemoveContainer(r.ctx, running))
}

// armed waits until the script of the container has set its trap: then it has a child.
func (r *rig) armed(id string) {
	r.t.Helper()
	r.poll("the script has set its trap", func() bool {
		_, err := r.Runtime.ExecSync(r.ctx, id, []string{"sh", "-c", ExecArmed}, 10*time.Second)
		return err == nil
	})
}

// ExecArmed succeeds when the container's first process has a child that sleeps.
const ExecArmed = "pidof sleep"

func testContainerConflicts(t *testing.T, s Subject) {
	r := newRig(t, s)
	r.run()
	id := r.create(r.container("c", ScriptWait))
	_, err := s.Runtime.CreateContainer(r.ctx, r.sandbox, r.container("c", ScriptWait), r.config)
	wantKind(t, "the same name and attempt", err, fault.AlreadyExists)
	next := r.container("c", ScriptWait)
	next.Attempt = 1
	if other := r.create(next); other == id {
		t.Error("the next attempt has the same ID")
	}
}

func testContainerStatusFields(t *testing.T, s Subject) {
	r := newRig(t, s)
	r.run()
	config := r.container("c", ScriptWait)
	config.Attempt = 4
	config.Labels = map[string]string{"l": "1"}
	config.Annotations = map[string]string{pod.AnnotationContainerHash: "abc"}
	config.Mounts = []pod.Mount{{ContainerPath: "/mnt", HostPath: s.LogRoot, ReadOnly: true}}
	user, group := int64(1234), int64(2345)
	config.Security.RunAsUser, config.Security.RunAsGroup = &user, &group
	config.Security.SupplementalGroups = []int64{3456}
	config.Resources = &pod.LinuxResources{CPUShares: 128, MemoryLimitBytes: 64 << 20}
	id := r.start(config)
	c := r.status(id)
	if c.ID != id || c.Name != "c" || c.Attempt != 4 || c.PodUID != r.config.UID || c.PodName != r.config.Name || c.PodNamespace != r.config.Namespace {
		t.Errorf("container is %+v", c)
	}
	if c.Labels["l"] != "1" || c.Labels[pod.LabelContainerName] != "c" || c.Labels[pod.LabelNode] != s.Node || c.Annotations[pod.AnnotationContainerHash] != "abc" {
		t.Errorf("labels are %v, annotations %v", c.Labels, c.Annotations)
	}
	if c.Image == "" || c.ImageRef == "" || c.ImageID == "" || c.StopSignal != "SIGTERM" {
		t.Errorf("image is %q, %q, %q; stop signal %q", c.Image, c.ImageRef, c.ImageID, c.StopSignal)
	}
	var found bool
	for _, m := range c.Mounts {
		found = found || m.ContainerPath == "/mnt" && m.HostPath == s.LogRoot && m.ReadOnly
	}
	if !found {
		t.Errorf("mounts are %+v", c.Mounts)
	}
	if c.User != nil && (c.User.UID != user || c.User.GID != group) {
		t.Errorf("user is %+v", c.User)
	}
	if c.Resources != nil && (c.Resources.CPUShares != 128 || c.Resources.MemoryLimitBytes != 64<<20) {
		t.Errorf("resources are %+v", c.Resources)
	}
	running := pod.ContainerRunning
	list, err := s.Runtime.ListContainers(r.ctx, cri.Filter{PodUID: r.config.UID, SandboxID: r.sandbox, State: &running})
	if err != nil || len(list) != 1 || list[0].ID != id || list[0].SandboxID != r.sandbox || list[0].Attempt != 4 || list[0].State != running {
		t.Errorf("list is %+v, %v", list, err)
	}
	created := pod.ContainerCreated
	if list, err = s.Runtime.ListContainers(r.ctx, cri.Filter{PodUID: r.config.UID, State: &created}); err != nil || len(list) != 0 {
		t.Errorf("created containers are %+v, %v", list, err)
	}
}

// clockSlack is how much before its start a container may have ended: the two times are taken by different processes.
const clockSlack = time.Second

func testExitCodes(t *testing.T, s Subject) {
	r := newRig(t, s)
	r.run()
	for _, test := range []struct {
		script, reason string
		code           int32
	}{{ScriptSucceed, "Completed", 0}, {ScriptFail, "Error", 3}} {
		id := r.start(r.container("c", test.script))
		c := r.until(id, pod.ContainerExited)
		if c.ExitCode != test.code || c.Reason != test.reason || c.StartedAt.IsZero() || c.FinishedAt.Before(c.StartedAt.Add(-clockSlack)) {
			t.Errorf("%s: container is %+v", test.script, c)
		}
		wantOK(t, "remove", s.Runtime.RemoveContainer(r.ctx, id))
	}
}

func testStopKillsAfterGrace(t *testing.T, s Subject) {
	r := newRig(t, s)
	r.run()
	id := r.start(r.container("c", ScriptIgnore))
	r.armed(id)
	start := time.Now()
	wantOK(t, "stop", s.Runtime.StopContainer(r.ctx, id, time.Second))
	if took := time.Since(start); took < time.Second {
		t.Errorf("stop took %v, less than the grace period", took)
	}
	if c := r.status(id); c.State != pod.ContainerExited || c.ExitCode != 137 {
		t.Errorf("killed container is %+v", c)
	}
	at := r.start(r.container("at-once", ScriptIgnore))
	wantOK(t, "stop without grace", s.Runtime.StopContainer(r.ctx, at, 0))
	if c := r.status(at); c.State != pod.ContainerExited || c.ExitCode != 137 {
		t.Errorf("killed container is %+v", c)
	}
}

func testStartFailure(t *testing.T, s Subject) {
	r := newRig(t, s)
	r.run()
	config := r.container("c", "")
	config.Command = []string{CommandMissing}
	id := r.create(config)
	err := s.Runtime.StartContainer(r.ctx, id)
	if err == nil || !strings.Contains(err.Error(), id) {
		t.Fatalf("start: error is %v, want one that names the container", err)
	}
	c := r.status(id)
	if c.State != pod.ContainerExited || c.ExitCode != 128 || c.Reason != "StartError" || c.Message == "" {
		t.Errorf("container is %+v", c)
	}
}

func testMissingImageFailsCreate(t *testing.T, s Subject) {
	r := newRig(t, s)
	r.run()
	config := r.container("c", ScriptWait)
	config.Image.Image = s.MissingImage
	_, err := s.Runtime.CreateContainer(r.ctx, r.sandbox, config, r.config)
	wantKind(t, "create", err, fault.NotFound)
}

func testLogs(t *testing.T, s Subject) {
	r := newRig(t, s)
	mkdir(t, filepath.Join(r.config.LogDirectory, "c"))
	r.run()
	config := r.container("c", ScriptPrint)
	config.LogPath = "c/0.log"
	id := r.start(config)
	path := filepath.Join(r.config.LogDirectory, "c", "0.log")
	if c := r.status(id); c.LogPath != path {
		t.Errorf("log path is %q, want %q", c.LogPath, path)
	}
	var lines []string
	r.poll("the log has two lines", func() bool {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatalf("read log: %v", err)
		}
		lines = strings.Split(strings.TrimSuffix(string(content), "\n"), "\n")
		return len(lines) >= 2
	})
	for i, want := range []string{"hello", "world"} {
		fields := strings.SplitN(lines[i], " ", 4)
		if len(fields) != 4 || fields[1] != "stdout" || fields[2] != "F" || fields[3] != want {
			t.Errorf("line is %q", lines[i])
		}
		if _, err := time.Parse(time.RFC3339Nano, fields[0]); err != nil {
			t.Errorf("time of the line: %v", err)
		}
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatalf("rotate: %v", err)
	}
	wantOK(t, "reopen", s.Runtime.ReopenContainerLog(r.ctx, id))
	if _, err := os.Stat(path); err != nil {
		t.Errorf("reopened log: %v", err)
	}
}

func testUpdateResources(t *testing.T, s Subject) {
	r := newRig(t, s)
	r.run()
	config := r.container("c", ScriptWait)
	config.Resources = &pod.LinuxResources{CPUShares: 128, MemoryLimitBytes: 64 << 20}
	id := r.start(config)
	wantOK(t, "update", s.Runtime.UpdateContainerResources(r.ctx, id, &pod.LinuxResources{CPUShares: 256}))
	if got := r.status(id).Resources; got != nil && (got.CPUShares != 256 || got.MemoryLimitBytes != 64<<20) {
		t.Errorf("resources are %+v", got)
	}
}

func testRestart(t *testing.T, s Subject) {
	r := newRig(t, s)
	r.run()
	id := r.start(r.container("c", ScriptWait))
	r.armed(id)
	before := r.status(id)
	s.Restart(t)
	after := r.status(id)
	if after.State != pod.ContainerRunning || !after.StartedAt.Equal(before.StartedAt) {
		t.Errorf("before the restart the container was %+v, after it %+v", before, after)
	}
	sb, err := s.Runtime.SandboxStatus(r.ctx, r.sandbox)
	if err != nil || !sb.Ready || len(sb.IPs) == 0 {
		t.Errorf("sandbox is %+v, %v", sb, err)
	}
	wantOK(t, "stop", s.Runtime.StopContainer(r.ctx, id, 10*time.Second))
	if c := r.status(id); c.ExitCode != 7 {
		t.Errorf("exit code is %d, want 7", c.ExitCode)
	}
}
