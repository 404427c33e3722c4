package pod_test

import (
	"slices"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/pod"
)

func ids(cs []pod.Container) []string {
	out := make([]string, 0, len(cs))
	for i := range cs {
		out = append(out, cs[i].ID)
	}
	return out
}

func TestRuntimePodNewestFirst(t *testing.T) {
	t.Parallel()
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	p := pod.RuntimePod{
		Sandboxes: []pod.Sandbox{
			{ID: "s0", Attempt: 0, CreatedAt: at(1), Ready: true, IPs: []string{"10.0.0.1"}},
			{ID: "s1", Attempt: 1, CreatedAt: at(5)},
		},
		Containers: []pod.Container{
			{ID: "a0", Name: "a", Attempt: 0, CreatedAt: at(9), State: pod.ContainerExited},
			{ID: "a1", Name: "a", Attempt: 1, CreatedAt: at(3), State: pod.ContainerRunning}, // the clock went back
			{ID: "b0y", Name: "b", Attempt: 0, CreatedAt: at(2)},
			{ID: "b0x", Name: "b", Attempt: 0, CreatedAt: at(2)},
		},
	}
	p.Sort()
	if got, want := ids(p.Containers), []string{"a1", "a0", "b0x", "b0y"}; !slices.Equal(got, want) {
		t.Errorf("containers are %v, want %v", got, want)
	}
	if got := p.Newest("a"); got == nil || got.ID != "a1" {
		t.Errorf("newest a is %v, want a1", got)
	}
	if got := p.Newest("none"); got != nil {
		t.Errorf("newest of a name that is not there is %v", got)
	}
	if got := p.NewestSandbox().ID; got != "s1" {
		t.Errorf("newest sandbox is %s, want s1", got)
	}
	if got := p.ReadySandbox().ID; got != "s0" {
		t.Errorf("ready sandbox is %s, want s0", got)
	}
	if got := p.IPs(); !slices.Equal(got, []string{"10.0.0.1"}) {
		t.Errorf("addresses are %v", got)
	}
	if got := p.Running(); len(got) != 1 || got[0].ID != "a1" {
		t.Errorf("running are %v, want a1", got)
	}
	if p.Container("b0y") == nil || p.Container("zz") != nil || p.Sandbox("s0") == nil || p.Sandbox("zz") != nil {
		t.Error("look-up by ID is wrong")
	}
	if p.Empty() || !(&pod.RuntimePod{}).Empty() {
		t.Error("Empty is wrong")
	}
}

func TestContainerStateText(t *testing.T) {
	t.Parallel()
	for _, s := range []pod.ContainerState{pod.ContainerUnknown, pod.ContainerCreated, pod.ContainerRunning, pod.ContainerExited} {
		text, err := s.MarshalText()
		if err != nil {
			t.Fatalf("marshal %v: %v", s, err)
		}
		var back pod.ContainerState
		if err := back.UnmarshalText(text); err != nil || back != s {
			t.Errorf("%s came back as %v, %v", text, back, err)
		}
	}
	var s pod.ContainerState
	if err := s.UnmarshalText([]byte("Sleeping")); err == nil {
		t.Error("an unknown name was taken")
	}
	if got := pod.ContainerState(77).String(); got != "ContainerState(77)" {
		t.Errorf("an unknown state is %q", got)
	}
}
