package plan_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/syncd/internal/plan"
)

var (
	histories = flag.Int("histories", 100_000, "how many random histories of pods are gone through")
	firstSeed = flag.Uint64("seed", 1, "the seed of the first history; 0 is the time")
	oneSeed   = flag.Bool("one", false, "only the history of -seed, with all that happens in it")
)

// TestProperties goes through random histories of random pods: everything happens to them at any moment, then they are left alone and must come to rest where they belong,
// and go when they are told to. After each step the laws of decisions and of statuses must hold. A history that breaks one is told step by step.
func TestProperties(t *testing.T) {
	first := *firstSeed
	if first == 0 {
		first = uint64(time.Now().UnixNano())
	}
	n := *histories
	if *oneSeed {
		n = 1
	}
	t.Logf("%d histories, the first has seed %d; one alone: -run TestProperties -args -one -seed <seed>", n, first)
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // it is mostly garbage, and there is little of it at a time
	var next, steps atomic.Uint64
	var bad atomic.Int64
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for bad.Load() < 5 {
				i := next.Add(1) - 1
				if i >= uint64(n) {
					return
				}
				m, err := history(first+i, *oneSeed)
				steps.Add(uint64(m.steps))
				if err != nil {
					bad.Add(1)
					m, err = history(first+i, true)
					t.Errorf("seed %d: %v\n%s", first+i, err, m.story())
				} else if *oneSeed {
					t.Log(m.story())
				}
			}
		})
	}
	workers.Wait()
	t.Logf("%d decisions", steps.Load())
}

// story is what happened.
func (m *model) story() string {
	b := fmt.Appendf(nil, "%s", describe(m.in.Pod))
	for _, line := range m.log {
		b = fmt.Appendf(b, "  %s\n", line)
	}
	return string(b)
}

func describe(p *v1.Pod) string {
	s := fmt.Sprintf("restartPolicy %s, grace %d, hostNetwork %t, generation %d\n", p.Spec.RestartPolicy, *p.Spec.TerminationGracePeriodSeconds, p.Spec.HostNetwork, p.Generation)
	if d := p.Spec.ActiveDeadlineSeconds; d != nil {
		s += fmt.Sprintf("active deadline %d s\n", *d)
	}
	for _, v := range p.Spec.Volumes {
		s += fmt.Sprintf("volume of an image: %t\n", v.Image != nil)
	}
	for _, c := range specs(p) {
		policy := ""
		if c.RestartPolicy != nil {
			policy = string(*c.RestartPolicy)
		}
		s += fmt.Sprintf("%s: image %s, policy %q, rules %v, probes %t %t %t, hook %t, resources %v\n", c.Name, c.Image, policy, c.RestartPolicyRules,
			c.StartupProbe != nil, c.LivenessProbe != nil, c.ReadinessProbe != nil, c.Lifecycle != nil, c.Resources.Requests)
	}
	return s
}

// history is one pod's life. It is the same for the same seed.
func history(seed uint64, verbose bool) (*model, error) {
	return historyOf(rand.New(rand.NewPCG(seed, 1)), verbose)
}

func historyOf(r *rand.Rand, verbose bool) (m *model, err error) {
	m = newModel(r, randomPod(r))
	m.verbose = verbose
	defer func() {
		if v := recover(); v != nil {
			broken, ok := v.(violation)
			if !ok {
				panic(v)
			}
			err = fmt.Errorf("%s", broken)
			m.logf("%s", broken)
		}
	}()
	if r.IntN(64) == 0 {
		m.crashLoop()
	}
	for range 6 + r.IntN(22) {
		m.step()
		m.work(r)
		if m.gone {
			return m, nil
		}
	}
	m.calm()
	p := m.settle()
	m.checkRest(&p)
	if !m.gone {
		m.deleteWithin(30)
		if m.settle(); !m.gone {
			m.fail("the pod does not go")
		}
	}
	return m, nil
}

// crashLoop lets everything go well but for containers that crash as soon as they run, until the longest back-off is reached.
func (m *model) crashLoop() {
	m.in.Volumes.Ready = true
	for range 60 {
		m.in.Now = m.in.Now.Add(time.Millisecond)
		p := m.step()
		for len(m.pending) > 0 {
			m.complete(0, true)
		}
		for _, c := range m.world.Running() {
			spec := pod.FindContainer(m.in.Pod, c.Name)
			if m.isInit(c.Name) {
				m.world.end(c.ID, 0, false, m.in.Now)
			} else if spec.Lifecycle == nil {
				m.world.end(c.ID, 1, false, m.in.Now)
			}
		}
		m.inspect()
		if len(p.Actions) == 0 && p.Again.After(m.in.Now) {
			m.in.Now = p.Again
		}
	}
}

// work lets actions go on, end or fail, and something happen besides.
func (m *model) work(r *rand.Rand) {
	for len(m.pending) > 0 && r.IntN(3) > 0 {
		i := r.IntN(len(m.pending))
		if r.IntN(4) == 0 {
			m.part(m.pending[i])
			continue
		}
		m.complete(i, r.IntN(5) > 0)
		if m.gone {
			return
		}
	}
	m.disturb()
}

// calm ends all disturbance.
func (m *model) calm() {
	m.logf("from now on nothing goes wrong")
	for len(m.ghosts) > 0 {
		m.haunt(0)
	}
	m.down = false
	m.in.Volumes.Ready = true
}

// settle lets everything go well until nothing is to be done any more.
func (m *model) settle() plan.Plan {
	for range 300 {
		m.in.Now = m.in.Now.Add(time.Millisecond)
		if len(m.pending) == 0 {
			m.inspect()
		}
		p := m.step()
		if len(m.pending) == 0 && !m.in.Stale && !m.live() {
			if p.Again.IsZero() {
				return p
			}
			m.in.Now = p.Again
		}
		for len(m.pending) > 0 {
			m.complete(0, true)
			if m.gone {
				return p
			}
		}
	}
	m.fail("it does not come to rest")
	return plan.Plan{}
}

// live lets what runs do what is expected of it, and says whether anything changed by that: init containers end, probes pass, and jobs, which are those of pods that
// do not restart always, end too.
func (m *model) live() bool {
	gone := m.in.Phase == plan.Terminated
	changed := gone != m.in.Volumes.Gone
	m.in.Volumes.Gone = gone
	for _, c := range m.world.Running() {
		spec := pod.FindContainer(m.in.Pod, c.Name)
		if m.isInit(c.Name) && !plan.IsSidecar(spec) {
			m.world.end(c.ID, 0, false, m.in.Now)
			changed = true
			continue
		}
		for kind, probe := range []*v1.Probe{spec.StartupProbe, spec.LivenessProbe, spec.ReadinessProbe} {
			if v := m.in.Probes[plan.ProbeKey{Container: c.Name, Kind: plan.ProbeKind(kind)}]; probe != nil && v.ContainerID != c.ID {
				m.verdict(c, plan.ProbeKind(kind), true)
				changed = true
			}
		}
	}
	if changed {
		m.inspect()
	}
	return changed
}

// checkRest says where a pod must be that nothing happens to any more.
func (m *model) checkRest(p *plan.Plan) {
	in := &m.in
	m.logf("at rest in %s, stop %+v, waits %v", p.Phase, p.Stop, p.Waits)
	for _, c := range m.world.Containers {
		m.logf("%s (%s) of sandbox %s is %s, code %d", c.Name, c.ID, c.SandboxID, c.State, c.ExitCode)
	}
	switch {
	case p.Phase == plan.Terminating:
		m.fail("at rest while terminating")
	case p.Phase == plan.Terminated && !m.gone:
		if len(m.world.Running()) > 0 || m.world.ReadySandbox() != nil {
			m.fail("something runs in a pod that ended")
		}
		if !over(in.Previous.Phase) {
			m.fail("terminated, but the phase is %s", in.Previous.Phase)
		}
		m.checkMayEnd(p)
	case p.Phase == plan.Syncing:
		m.checkGoesOn(p)
	}
}

// checkMayEnd wants a reason for the end of a pod.
func (m *model) checkMayEnd(p *plan.Plan) {
	in := &m.in
	if in.Eviction != nil || in.Pod.DeletionTimestamp != nil || p.Stop.Cause == plan.CauseDeadline && in.Pod.Spec.ActiveDeadlineSeconds != nil {
		return
	}
	if m.initFailed() {
		return
	}
	for i := range in.Pod.Spec.Containers {
		spec := &in.Pod.Spec.Containers[i]
		if m.mustRun(spec) && !m.lostSomething() {
			m.fail("the pod ended, though %s may run again: %+v", spec.Name, m.counted(spec.Name))
		}
	}
}

func (m *model) initFailed() bool {
	for i := range m.in.Pod.Spec.InitContainers {
		spec := &m.in.Pod.Spec.InitContainers[i]
		if l := m.counted(spec.Name); !plan.IsSidecar(spec) && l != nil && l.exited && !l.well() && !m.mayRunAgain(spec, l) {
			return true
		}
	}
	return false
}

// lostSomething says whether the runtime forgot something, or a pod that never restarts lost its sandbox: the pod is over then.
func (m *model) lostSomething() bool {
	for _, l := range m.world.lives {
		if l.lost {
			return true
		}
	}
	return m.in.Pod.Spec.RestartPolicy == v1.RestartPolicyNever && len(m.world.lives) > 0
}

// checkGoesOn wants everything to run in a pod that goes on, in one sandbox.
func (m *model) checkGoesOn(*plan.Plan) {
	in := &m.in
	if in.Pod.DeletionTimestamp != nil || in.Eviction != nil || m.initFailed() {
		m.fail("a pod that is to end goes on")
	}
	if !m.healthy() {
		m.fail("at rest without a good sandbox: %v", in.Runtime.Sandboxes)
	}
	all := true
	for _, spec := range specs(in.Pod) {
		init := m.isInit(spec.Name)
		if init && !plan.IsSidecar(spec) {
			continue
		}
		over, must := !init && m.overForGood(spec), init || m.mustRun(spec)
		all = all && (over || init)
		c := m.world.Container("")
		for i := range m.world.Containers {
			if m.world.Containers[i].Name == spec.Name && m.world.Containers[i].State == pod.ContainerRunning {
				c = &m.world.Containers[i]
			}
		}
		switch {
		case over && c != nil:
			m.fail("%s runs, though it may not any more", spec.Name)
		case must && (c == nil || c.SandboxID != in.Runtime.Sandboxes[0].ID):
			m.fail("at rest, but %s does not run in the good sandbox: %+v", spec.Name, c)
		case c != nil && c.Image != spec.Image:
			m.fail("%s runs with image %s, want %s", spec.Name, c.Image, spec.Image)
		}
	}
	if all {
		m.fail("a pod goes on that has nothing left to run")
	}
	m.checkShown()
}

// checkShown wants the last status to show a pod at rest as it is.
func (m *model) checkShown() {
	s := m.in.Previous
	if s.Phase != v1.PodRunning {
		m.fail("all runs, but the phase is %s", s.Phase)
	}
	for i := range s.ContainerStatuses {
		c := &s.ContainerStatuses[i]
		if c.State.Running == nil && c.State.Terminated == nil {
			m.fail("at rest, but %s is shown as %+v", c.Name, c.State)
		}
	}
}

// FuzzNext has the fuzzer's bytes decide what happens.
func FuzzNext(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(seed, []byte("0123456789abcdef"))
	}
	f.Fuzz(func(t *testing.T, seed uint64, script []byte) {
		if _, err := historyOf(rand.New(&scripted{script, rand.NewPCG(seed, 2)}), false); err != nil {
			m, _ := historyOf(rand.New(&scripted{script, rand.NewPCG(seed, 2)}), true)
			t.Fatalf("%v\n%s", err, m.story())
		}
	})
}

// scripted is chance that begins with a script.
type scripted struct {
	script []byte
	rest   rand.Source
}

// Uint64 is the next byte in each place.
func (s *scripted) Uint64() uint64 {
	if len(s.script) == 0 {
		return s.rest.Uint64()
	}
	b := s.script[0]
	s.script = s.script[1:]
	return uint64(b) * 0x0101010101010101
}
