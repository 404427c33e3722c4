package conformance

import (
	"testing"
	"time"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pod"
)

func testHealth(t *testing.T, s Subject) {
	r := newRig(t, s)
	v, err := s.Runtime.Version(r.ctx)
	if err != nil || v.RuntimeAPIVersion != "v1" || v.RuntimeName == "" || v.RuntimeVersion == "" {
		t.Errorf("version is %+v, %v", v, err)
	}
	status, err := s.Runtime.Status(r.ctx)
	wantOK(t, "status", err)
	for _, condition := range []string{cri.ConditionRuntimeReady, cri.ConditionNetworkReady} {
		if c := status.Condition(condition); !c.Status {
			t.Errorf("condition is %+v", c)
		}
	}
	if c := status.Condition("NoSuchCondition"); c.Status || c.Reason != "NotReported" {
		t.Errorf("a condition that is not reported is %+v", c)
	}
	if _, ok := status.Handlers[""]; !ok {
		t.Errorf("no default handler among %v", status.Handlers)
	}
	config, err := s.Runtime.RuntimeConfig(r.ctx)
	if !fault.Is(err, fault.Unimplemented) && (err != nil || config.CgroupDriver == "") {
		t.Errorf("runtime config is %+v, %v", config, err)
	}
}

func testSandboxLifecycle(t *testing.T, s Subject) {
	r := newRig(t, s)
	before := time.Now()
	id := r.run()

	sb, err := s.Runtime.SandboxStatus(r.ctx, id)
	wantOK(t, "status", err)
	if sb.ID != id || sb.Name != r.config.Name || sb.Namespace != r.config.Namespace || sb.UID != r.config.UID || sb.Attempt != 0 || !sb.Ready {
		t.Errorf("sandbox is %+v", sb)
	}
	if len(sb.IPs) == 0 || sb.HostNetwork {
		t.Errorf("addresses are %v, host network %v", sb.IPs, sb.HostNetwork)
	}
	if age := sb.CreatedAt.Sub(before); age < -time.Minute || age > bound {
		t.Errorf("created %v after the call", age)
	}
	for k, want := range map[string]string{
		"app": "conformance", pod.LabelNode: s.Node, pod.LabelPodUID: r.config.UID, pod.LabelPodName: r.config.Name,
		pod.LabelPodNamespace: r.config.Namespace,
	} {
		if sb.Labels[k] != want {
			t.Errorf("label %s is %q, want %q", k, sb.Labels[k], want)
		}
	}
	if got := sb.Annotations[pod.AnnotationTraceparent]; got != "00-01-02-01" {
		t.Errorf("annotation is %q", got)
	}

	_, err = s.Runtime.RunSandbox(r.ctx, r.config)
	wantKind(t, "run the same again", err, fault.AlreadyExists)

	for range 2 {
		wantOK(t, "stop", s.Runtime.StopSandbox(r.ctx, id))
	}
	if sb, err = s.Runtime.SandboxStatus(r.ctx, id); err != nil || sb.Ready || len(sb.IPs) != 0 {
		t.Errorf("stopped sandbox is %+v, %v", sb, err)
	}
	_, err = s.Runtime.RunSandbox(r.ctx, r.config)
	wantKind(t, "run the same again, stopped", err, fault.AlreadyExists)

	again := *r.config
	again.Attempt = 1
	second, err := s.Runtime.RunSandbox(r.ctx, &again)
	wantOK(t, "next attempt", err)
	if second == id {
		t.Error("the next attempt has the same ID")
	}
	for range 2 {
		wantOK(t, "remove", s.Runtime.RemoveSandbox(r.ctx, id))
	}
	_, err = s.Runtime.SandboxStatus(r.ctx, id)
	wantKind(t, "status of the removed", err, fault.NotFound)
	wantOK(t, "remove while it runs", s.Runtime.RemoveSandbox(r.ctx, second))
}

func testSandboxFilters(t *testing.T, s Subject) {
	a, b := newRig(t, s), newRig(t, s)
	b.config.Labels["tier"] = "b"
	b.config.Security.Namespaces.Network, b.config.Hostname = cri.NamespaceNode, ""
	idA, idB := a.run(), b.run()
	wantOK(t, "stop", s.Runtime.StopSandbox(a.ctx, idA))
	ready, notReady := true, false
	mine := map[string]string{idA: "a", idB: "b"}
	for _, test := range []struct {
		name   string
		filter cri.Filter
		want   string
	}{
		{"none", cri.Filter{}, "ab"},
		{"ID", cri.Filter{ID: idA}, "a"},
		{"pod UID", cri.Filter{PodUID: b.config.UID}, "b"},
		{"ready", cri.Filter{Ready: &ready}, "b"},
		{"not ready", cri.Filter{Ready: &notReady}, "a"},
		{"label", cri.Filter{Labels: map[string]string{"tier": "b"}}, "b"},
		{"label and ready", cri.Filter{Labels: map[string]string{"tier": "b"}, Ready: &notReady}, ""},
	} {
		list, err := s.Runtime.ListSandboxes(a.ctx, test.filter)
		wantOK(t, test.name, err)
		got := map[string]bool{}
		for _, sb := range list {
			got[mine[sb.ID]] = true
			if sb.UID == "" || sb.CreatedAt.IsZero() || sb.Labels[pod.LabelNode] != s.Node {
				t.Errorf("%s: listed is %+v", test.name, sb)
			}
		}
		for _, name := range []string{"a", "b"} {
			want := test.want == name || test.want == "ab"
			if got[name] != want {
				t.Errorf("%s: %s is listed: %v, want %v", test.name, name, got[name], want)
			}
		}
	}
	sb, err := s.Runtime.SandboxStatus(a.ctx, idB)
	if err != nil || !sb.HostNetwork || len(sb.IPs) != 0 {
		t.Errorf("sandbox in the host's network is %+v, %v", sb, err)
	}
}

func testUnknownIDs(t *testing.T, s Subject) {
	r := newRig(t, s)
	const id = "0000000000000000000000000000000000000000000000000000000000000000"
	for range 2 {
		wantOK(t, "stop sandbox", s.Runtime.StopSandbox(r.ctx, id))
		wantOK(t, "remove sandbox", s.Runtime.RemoveSandbox(r.ctx, id))
		wantOK(t, "stop container", s.Runtime.StopContainer(r.ctx, id, time.Second))
		wantOK(t, "remove container", s.Runtime.RemoveContainer(r.ctx, id))
	}
	_, err := s.Runtime.SandboxStatus(r.ctx, id)
	wantKind(t, "sandbox status", err, fault.NotFound)
	_, err = s.Runtime.ContainerStatus(r.ctx, id)
	wantKind(t, "container status", err, fault.NotFound)
	wantKind(t, "start", s.Runtime.StartContainer(r.ctx, id), fault.NotFound)
	_, err = s.Runtime.ExecSync(r.ctx, id, []string{"true"}, time.Second)
	wantKind(t, "exec", err, fault.NotFound)
	wantKind(t, "reopen log", s.Runtime.ReopenContainerLog(r.ctx, id), fault.NotFound)
	wantKind(t, "update", s.Runtime.UpdateContainerResources(r.ctx, id, &pod.LinuxResources{CPUShares: 4}), fault.NotFound)
	_, err = s.Runtime.ContainerStats(r.ctx, id)
	wantKind(t, "stats", err, fault.NotFound)
	_, err = s.Runtime.CreateContainer(r.ctx, id, r.container("c", ScriptWait), r.config)
	wantKind(t, "create", err, fault.NotFound)
	p, err := s.Runtime.PodStatus(r.ctx, "no-such-uid")
	if err != nil || !p.Empty() || p.UID != "no-such-uid" || p.ObservedAt.IsZero() {
		t.Errorf("unknown pod is %+v, %v", p, err)
	}
}

func testRemoveSandboxRemovesContainers(t *testing.T, s Subject) {
	r := newRig(t, s)
	r.run()
	running, created := r.start(r.container("running", ScriptIgnore)), r.create(r.container("created", ScriptWait))
	wantOK(t, "remove", s.Runtime.RemoveSandbox(r.ctx, r.sandbox))
	for _, id := range []string{running, created} {
		_, err := s.Runtime.ContainerStatus(r.ctx, id)
		wantKind(t, "container of a removed sandbox", err, fault.NotFound)
	}
	p, err := s.Runtime.PodStatus(r.ctx, r.config.UID)
	if err != nil || !p.Empty() {
		t.Errorf("removed pod is %+v, %v", p, err)
	}
}

func testStopSandboxKillsContainers(t *testing.T, s Subject) {
	r := newRig(t, s)
	r.run()
	id := r.start(r.container("c", ScriptIgnore))
	wantOK(t, "stop", s.Runtime.StopSandbox(r.ctx, r.sandbox))
	if c := r.until(id, pod.ContainerExited); c.ExitCode != 137 {
		t.Errorf("exit code is %d, want 137", c.ExitCode)
	}
	_, err := s.Runtime.CreateContainer(r.ctx, r.sandbox, r.container("late", ScriptWait), r.config)
	if err == nil {
		t.Error("a container was made in a stopped sandbox")
	}
}

func testOwnership(t *testing.T, s Subject) {
	r := newRig(t, s)
	r.run()
	id := r.start(r.container("c", ScriptWait))
	sandboxes, err := s.Other.ListSandboxes(r.ctx, cri.Filter{ID: r.sandbox})
	if err != nil || len(sandboxes) != 0 {
		t.Errorf("another node lists sandboxes %v, %v", sandboxes, err)
	}
	containers, err := s.Other.ListContainers(r.ctx, cri.Filter{ID: id})
	if err != nil || len(containers) != 0 {
		t.Errorf("another node lists containers %v, %v", containers, err)
	}
	p, err := s.Other.PodStatus(r.ctx, r.config.UID)
	if err != nil || !p.Empty() {
		t.Errorf("another node sees pod %+v, %v", p, err)
	}
	stats, err := s.Other.ListPodStats(r.ctx, cri.Filter{PodUID: r.config.UID})
	if err != nil || len(stats) != 0 {
		t.Errorf("another node measures %v, %v", stats, err)
	}
}
