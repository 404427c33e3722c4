package plan_test

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/syncd/internal/plan"
	"github.com/podplane/podplane/services/syncd/internal/status"
)

// The laws of statuses. The one before is what was published last, or what was stored when the process is new: what users have seen.

// checkStatus says what must hold of each status, and between it and the one before.
func (m *model) checkStatus(in *plan.Input, p *plan.Plan, s *v1.PodStatus) {
	before := in.Previous
	if before == nil {
		before = &v1.PodStatus{}
	}
	m.checkPhase(p, before, s)
	if s.ObservedGeneration != in.Pod.Generation || s.StartTime == nil || (before.StartTime != nil && !before.StartTime.Equal(s.StartTime)) {
		m.fail("generation %d of %d, started %v, before %v", s.ObservedGeneration, in.Pod.Generation, s.StartTime, before.StartTime)
	}
	if before.Reason != "" && s.Reason == "" {
		m.fail("the reason %s was taken back", before.Reason)
	}
	m.checkConditions(in, before, s)
	for i, list := range [][2][]v1.ContainerStatus{
		{before.InitContainerStatuses, s.InitContainerStatuses},
		{before.ContainerStatuses, s.ContainerStatuses},
		{before.EphemeralContainerStatuses, s.EphemeralContainerStatuses},
	} {
		for j := range list[1] {
			c := &list[1][j]
			m.checkContainer(in, p, c)
			for k := range list[0] {
				if list[0][k].Name == c.Name {
					m.checkProgress(in, &list[0][k], c, i)
				}
			}
		}
	}
	if want := len(in.Pod.Spec.InitContainers) + len(in.Pod.Spec.Containers) + len(in.Pod.Spec.EphemeralContainers); want != len(s.InitContainerStatuses)+len(s.ContainerStatuses)+len(s.EphemeralContainerStatuses) {
		m.fail("of %d containers some are missing in the status", want)
	}
}

func over(phase v1.PodPhase) bool { return phase == v1.PodSucceeded || phase == v1.PodFailed }

// checkPhase: the end is told when nothing runs any more, and never taken back; success is success of all.
func (m *model) checkPhase(p *plan.Plan, before, s *v1.PodStatus) {
	switch {
	case !slices.Contains([]v1.PodPhase{v1.PodPending, v1.PodRunning, v1.PodSucceeded, v1.PodFailed}, s.Phase):
		m.fail("phase %q", s.Phase)
	case over(before.Phase) && s.Phase != before.Phase:
		m.fail("the phase went from %s to %s", before.Phase, s.Phase)
	case over(s.Phase) && p.Phase != plan.Terminated:
		m.fail("phase %s is told in %s", s.Phase, p.Phase)
	case !over(s.Phase) && p.Phase == plan.Terminated:
		m.fail("phase %s is told in %s", s.Phase, p.Phase)
	}
	if over(before.Phase) || !over(s.Phase) {
		return
	}
	for i := range s.ContainerStatuses {
		t := s.ContainerStatuses[i].State.Terminated
		if s.Phase == v1.PodSucceeded && (t == nil || t.ExitCode != 0 || t.Reason == "OOMKilled") {
			m.fail("the pod succeeded with %s %+v", s.ContainerStatuses[i].Name, s.ContainerStatuses[i].State)
		}
	}
	if stop := p.Stop; s.Phase == v1.PodSucceeded && (stop.Cause == plan.CauseEviction || stop.Cause == plan.CauseInitFailed || stop.Cause == plan.CauseDeadline) {
		m.fail("the pod succeeded though it was stopped: %+v", *stop)
	}
	if p.Stop.Cause == plan.CauseEviction && s.Reason == "" {
		m.fail("evicted without a reason")
	}
}

// checkConditions: each once, of this generation, its time moved only with its status; and what follows from one holds.
func (m *model) checkConditions(in *plan.Input, before, s *v1.PodStatus) {
	have := make(map[v1.PodConditionType]bool, 8)
	for i := range s.Conditions {
		c := &s.Conditions[i]
		if _, twice := have[c.Type]; twice {
			m.fail("condition %s is there twice", c.Type)
		}
		have[c.Type] = c.Status == v1.ConditionTrue
		if !status.OwnCondition(c.Type) {
			continue
		}
		if c.ObservedGeneration != in.Pod.Generation {
			m.fail("condition %s is of generation %d, the pod of %d", c.Type, c.ObservedGeneration, in.Pod.Generation)
		}
		want := in.Now
		for j := range before.Conditions {
			if o := &before.Conditions[j]; o.Type == c.Type && o.Status == c.Status {
				want = o.LastTransitionTime.Time
			}
		}
		if !c.LastTransitionTime.Time.Equal(want) {
			m.fail("condition %s is %s since %s, want %s", c.Type, c.Status, c.LastTransitionTime, want)
		}
	}
	for _, want := range []v1.PodConditionType{v1.PodScheduled, v1.PodInitialized, v1.ContainersReady, v1.PodReady, v1.PodReadyToStartContainers} {
		if _, ok := have[want]; !ok {
			m.fail("condition %s is missing", want)
		}
	}
	if have[v1.PodReady] && !have[v1.ContainersReady] || have[v1.ContainersReady] && !have[v1.PodInitialized] {
		m.fail("conditions contradict each other: %v", s.Conditions)
	}
	if have[v1.PodReady] && over(s.Phase) || have[v1.ContainersReady] && s.Phase != v1.PodRunning {
		m.fail("ready in phase %s", s.Phase)
	}
	m.checkReady(in, s, have)
}

// checkReady: a pod is ready if and only if its containers are, its sidecars too, and its gates are open.
func (m *model) checkReady(in *plan.Input, s *v1.PodStatus, have map[v1.PodConditionType]bool) {
	all := !over(s.Phase)
	for i := range s.ContainerStatuses {
		all = all && s.ContainerStatuses[i].Ready
	}
	initialized := true
	for i := range s.InitContainerStatuses {
		c := &s.InitContainerStatuses[i]
		if plan.IsSidecar(&in.Pod.Spec.InitContainers[i]) {
			all = all && c.Ready
			initialized = initialized && *c.Started
		} else {
			initialized = initialized && c.State.Terminated != nil && c.State.Terminated.ExitCode == 0
		}
	}
	if have[v1.ContainersReady] != all || have[v1.PodInitialized] != (initialized || s.Phase == v1.PodSucceeded) {
		m.fail("ContainersReady %t, Initialized %t, but %+v %+v", have[v1.ContainersReady], have[v1.PodInitialized], s.InitContainerStatuses, s.ContainerStatuses)
	}
	for _, gate := range in.Pod.Spec.ReadinessGates {
		all = all && have[gate.ConditionType]
	}
	if have[v1.PodReady] != all {
		m.fail("Ready is %t, want %t: %+v", have[v1.PodReady], all, s)
	}
}

var waitingReasons = []string{
	"ContainerCreating", "PodInitializing", "CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "RegistryUnavailable", "InvalidImageName", "ErrImageNeverPull",
	"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PostStartHookError",
}

var terminatedReasons = []string{"Completed", "Error", "OOMKilled", "StartError", "ContainerStatusUnknown", "RestartingAllContainers"}

// checkContainer says what must hold of one container's status.
func (m *model) checkContainer(in *plan.Input, p *plan.Plan, c *v1.ContainerStatus) {
	states := 0
	if w := c.State.Waiting; w != nil {
		states++
		if !slices.Contains(waitingReasons, w.Reason) {
			m.fail("%s waits for reason %q", c.Name, w.Reason)
		}
		if w.Reason == plan.ReasonCrashLoopBackOff && c.LastTerminationState.Terminated == nil {
			m.fail("%s is in a crash loop, but never ended", c.Name)
		}
	}
	if t := c.State.Terminated; t != nil {
		states++
		m.checkTerminated(c.Name, t)
	}
	if t := c.LastTerminationState.Terminated; t != nil {
		m.checkTerminated(c.Name, t)
		if now := c.State.Terminated; now != nil && now.ContainerID != "" && now.ContainerID == t.ContainerID {
			m.fail("the last termination of %s is the present one: %+v", c.Name, t)
		}
	}
	if c.State.Running != nil {
		states++
		if l := in.Runtime.Newest(c.Name); l == nil || l.State != pod.ContainerRunning || c.ContainerID != "test://"+l.ID {
			m.fail("%s is running as %s, but it is %+v", c.Name, c.ContainerID, l)
		}
	}
	if states != 1 {
		m.fail("%s is in %d states: %+v", c.Name, states, c.State)
	}
	started := c.Started != nil && *c.Started
	if started && c.State.Running == nil || c.Ready && !m.isInit(c.Name) && !started {
		m.fail("%s: started %t, ready %t, %+v", c.Name, started, c.Ready, c.State)
	}
	for i := range in.Runtime.Containers {
		older := &in.Runtime.Containers[i]
		if older.Name == c.Name && older.State == pod.ContainerExited && !older.StartedAt.IsZero() && c.State.Terminated == nil && c.LastTerminationState.Terminated == nil {
			m.fail("%s ran before as %s, and nothing is told of that", c.Name, older.ID)
		}
	}
	m.checkProbed(in, p, c)
}

// lost says whether the runtime forgot an instance of the container.
func (m *model) lost(name string) bool {
	return slices.ContainsFunc(m.world.named[name], func(l *life) bool { return l.lost })
}

func (m *model) inGoodSandbox(in *plan.Input, id string) bool {
	c := in.Runtime.Container(id)
	return c != nil && m.healthy() && c.SandboxID == in.Runtime.Sandboxes[0].ID
}

func (m *model) checkTerminated(name string, t *v1.ContainerStateTerminated) {
	if !slices.Contains(terminatedReasons, t.Reason) {
		m.fail("%s ended for reason %q", name, t.Reason)
	}
	if (t.Reason == "Completed") != (t.ExitCode == 0) && t.Reason != "OOMKilled" {
		m.fail("%s ended with %d for reason %s", name, t.ExitCode, t.Reason)
	}
}

// checkProbed: without a verdict that says otherwise, what runs and has no probe is ready, and a verdict counts at once.
func (m *model) checkProbed(in *plan.Input, _ *plan.Plan, c *v1.ContainerStatus) {
	spec := pod.FindContainer(in.Pod, c.Name)
	if m.isEphemeral(c.Name) || c.State.Running == nil || in.Busy.Containers[c.Name] || (m.isInit(c.Name) && !plan.IsSidecar(spec)) {
		return
	}
	id := c.ContainerID[len("test://"):]
	says := func(kind plan.ProbeKind, probe *v1.Probe) (yes, no bool) {
		v := in.Probes[plan.ProbeKey{Container: c.Name, Kind: kind}]
		if probe == nil {
			return true, false
		}
		return v.ContainerID == id && v.Success, v.ContainerID == id && v.Failure
	}
	if !m.inGoodSandbox(in, id) {
		if c.Ready {
			m.fail("%s is ready in a sandbox that is given up", c.Name)
		}
		return
	}
	up, notUp := says(plan.Startup, spec.StartupProbe)
	ready, notReady := says(plan.Readiness, spec.ReadinessProbe)
	if up && !*c.Started || notUp && *c.Started || up && ready && !c.Ready || notReady && c.Ready {
		m.fail("%s: started %t, ready %t against its probes", c.Name, *c.Started, c.Ready)
	}
}

// checkProgress says what must hold between two statuses of a container.
func (m *model) checkProgress(in *plan.Input, before, c *v1.ContainerStatus, list int) {
	if c.RestartCount < before.RestartCount {
		m.fail("the restart count of %s went from %d to %d", c.Name, before.RestartCount, c.RestartCount)
	}
	ends := func(s *v1.ContainerStatus) (last time.Time, any bool) {
		for _, t := range []*v1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
			if t != nil {
				any = true
				if t.FinishedAt.After(last) {
					last = t.FinishedAt.Time
				}
			}
		}
		return last, any
	}
	was, ended := ends(before)
	is, still := ends(c)
	if ended && !still {
		m.fail("the end of %s is forgotten: %+v, then %+v", c.Name, before, c)
	}
	if !is.IsZero() && is.Before(was.Truncate(time.Second)) && !m.lost(c.Name) {
		m.fail("%s ended last at %s, before it was %s", c.Name, is, was)
	}
	if before.State.Running != nil && c.ContainerID != before.ContainerID && !still {
		m.fail("%s was replaced, and its end is not told: %+v, then %+v", c.Name, before, c)
	}
	same := before.ContainerID == c.ContainerID && before.State.Running != nil && c.State.Running != nil
	if !same || list == 2 || in.Busy.Containers[c.Name] {
		return
	}
	says := func(kind plan.ProbeKind) bool {
		v := in.Probes[plan.ProbeKey{Container: c.Name, Kind: kind}]
		return "test://"+v.ContainerID == c.ContainerID && v.Failure
	}
	if *before.Started && !*c.Started && !says(plan.Startup) {
		m.fail("%s is not started any more, though no probe says so", c.Name)
	}
	if before.Ready && !c.Ready && !says(plan.Startup) && !says(plan.Readiness) && m.inGoodSandbox(in, c.ContainerID[len("test://"):]) {
		m.fail("%s is not ready any more, though no probe says so", c.Name)
	}
}
