package worker_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/podplane/podplane/internal/cri/crifake"
	"github.com/podplane/podplane/services/syncd/internal/plan"
)

// wantWhy compares a pod's chains with lines, of which each * stands for anything.
func (w *world) wantWhy(uid string, want ...string) {
	w.t.Helper()
	got := w.why(uid)
	matches := func(line, pattern string) bool {
		parts := strings.Split(pattern, "*")
		for i, p := range parts {
			at := strings.Index(line, p)
			if at < 0 || (i == 0 && at > 0) || (i == len(parts)-1 && !strings.HasSuffix(line, p)) {
				return false
			}
			line = line[at+len(p):]
			if i == len(parts)-1 {
				return true
			}
		}
		return true
	}
	ok := len(got) == len(want)
	for i := 0; ok && i < len(got); i++ {
		ok = matches(got[i], want[i])
	}
	if !ok {
		w.t.Errorf("why %s:\n  %s\nwant:\n  %s", uid, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

const (
	whyCreated = "pod created over the API -> it is to run here -> creation of the sandbox"
	whyFirst   = "sandbox ready -> its image and volumes are there -> start of container main"
)

func TestWhyOfACrashLoopOverARestart(t *testing.T) {
	inBubble(t, crifake.Options{Behavior: crashes(7)}, func(w *world) {
		p := w.start()
		w.wish(newPod("a", container("main")))
		time.Sleep(5 * time.Second)
		synctest.Wait()
		p.kill()
		p = w.start()
		defer func() { p.kill() }()
		time.Sleep(15 * time.Second)
		synctest.Wait()
		w.wantWhy("uid-a", whyCreated, whyFirst,
			"container main ended with exit code 7 -> restartPolicy Always -> start of container main as restart 1",
			"only the newest dead container of each name is kept -> removal of container main",
			"container main ended with exit code 7 -> restartPolicy Always, back-off 10s -> start of container main as restart 2",
			"only the newest dead container of each name is kept -> removal of container main as restart 1",
			"container main ended with exit code 7 -> restartPolicy Always, back-off 20s",
		)
		before := len(w.decided)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if n := len(w.decided) - before; n != 0 {
			t.Errorf("%d decisions while nothing happened", n)
		}
	})
}

func TestWhyOfProbes(t *testing.T) {
	inBubble(t, crifake.Options{}, func(w *world) {
		p := w.start()
		defer func() { p.kill() }()
		c := container("main")
		get := func(path string) *v1.Probe {
			return &v1.Probe{ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: path, Port: intstr.FromInt32(80)}}}
		}
		c.ReadinessProbe, c.LivenessProbe = get("/ready"), get("/healthz")
		w.wish(newPod("a", c))
		synctest.Wait()
		id := w.runtimePod("uid-a").Containers[0].ID
		say := func(kind plan.ProbeKind, v plan.Verdict) {
			v.ContainerID, v.At = id, time.Now()
			p.m.ProbeChanged("uid-a", plan.ProbeKey{Container: "main", Kind: kind}, &v)
			time.Sleep(time.Second)
			synctest.Wait()
		}
		say(plan.Readiness, plan.Verdict{Success: true})
		say(plan.Readiness, plan.Verdict{Failure: true, InARow: 3, Output: "HTTP probe failed with statuscode: 503"})
		// The service is replaced: nothing is told again.
		p.kill()
		p = w.start()
		say(plan.Readiness, plan.Verdict{Failure: true, InARow: 3, Output: "HTTP probe failed with statuscode: 503"})
		say(plan.Liveness, plan.Verdict{Failure: true, InARow: 3, Output: "dial tcp: connection refused"})
		w.wantWhy("uid-a", whyCreated, whyFirst,
			"readiness probe HTTP /ready succeeded -> ready",
			"readiness probe HTTP /ready failed 3 times: 503 -> not ready",
			"liveness probe HTTP /healthz failed 3 times: dial tcp: connection refused -> asked to stop within 30s -> stop of container main",
			"container main ended with exit code * -> restartPolicy Always -> start of container main as restart 1",
		)
	})
}

func TestWhyOfADeletionAndAnEviction(t *testing.T) {
	inBubble(t, crifake.Options{}, func(w *world) {
		p := w.start()
		defer p.kill()
		w.wish(newPod("a", container("main")))
		w.wish(newPod("b", container("main")))
		synctest.Wait()
		p.m.EvictionChanged("uid-a", &plan.Eviction{Reason: "Evicted", Message: "The node was low on resource: memory.", Grace: 5 * time.Second, OrderedAt: time.Now()})
		w.remove("uid-b", 30)
		time.Sleep(time.Minute)
		synctest.Wait()
		w.wantWhy("uid-a", whyCreated, whyFirst,
			"evicted: The node was low on resource: memory. -> its containers are stopped",
			"evicted: The node was low on resource: memory. -> asked to stop within 5s -> stop of container main",
			"container main ended with exit code * -> no container of the pod runs any more -> stop of the sandbox",
		)
		w.wantWhy("uid-b", whyCreated, whyFirst,
			"pod deleted, grace period 30s -> its containers are stopped",
			"pod deleted, grace period 30s -> asked to stop within 30s -> stop of container main",
			"container main ended with exit code * -> no container of the pod runs any more -> stop of the sandbox",
			"pod deleted, grace period 30s -> nothing of the pod runs any more -> removal of the sandbox",
			"pod deleted, grace period 30s -> nothing of the pod is left on the node -> the pod is gone",
		)
	})
}

func TestWhyOfAChangedImageAndAFailedStart(t *testing.T) {
	inBubble(t, crifake.Options{}, func(w *world) {
		p := w.start()
		defer p.kill()
		w.cri.AddImage("app:2")
		x := w.wish(newPod("a", container("main")))
		synctest.Wait()
		changed := x.DeepCopy()
		changed.Spec.Containers[0].Image = "app:2"
		w.wish(changed)
		synctest.Wait()
		w.wantWhy("uid-a", whyCreated, whyFirst,
			"definition of container main changed: its image is app:2 now -> asked to stop within 30s -> stop of container main",
			"container main ended with exit code * -> restartPolicy Always -> start of container main as restart 1",
		)
		c := container("main")
		c.EnvFrom = []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "later"}}}}
		w.wish(newPod("b", c))
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		w.wantWhy("uid-b", whyCreated, whyFirst,
			"starting container main failed (CreateContainerConfigError): configmap \"later\" not found -> tried again in 1s",
		)
	})
}

func TestWhyOfWhatEnds(t *testing.T) {
	inBubble(t, crifake.Options{Behavior: crashes(0)}, func(w *world) {
		p := w.start()
		defer p.kill()
		x := newPod("a", container("main"))
		x.Spec.RestartPolicy = v1.RestartPolicyNever
		w.wish(x)
		time.Sleep(time.Second)
		synctest.Wait()
		w.wantWhy("uid-a", whyCreated, whyFirst,
			"container main ended with exit code 0 -> restartPolicy Never: nothing is left to run -> no container of the pod runs any more -> stop of the sandbox",
		)
	})
}
