package chaos_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/test/harness"
)

// TestPodsComeAndGoWhileServicesDie creates and deletes pods at random for minutes while syncd and pleg are killed at random. All the time no container runs twice,
// and pods that nobody touches keep theirs; afterwards every pod has its containers, every container its pod, and of the deleted ones nothing is left.
func TestPodsComeAndGoWhileServicesDie(t *testing.T) {
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	d := duration(t)
	t.Logf("seed %d, for %s", *seed, d)
	s, proxy := newStage(t, rand.New(rand.NewPCG(*seed, 0)))
	ctx := t.Context()
	if err := s.accepted(ctx, http.MethodPost, "/api/v1/namespaces/"+namespace+"/configmaps",
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {color: blue}\n", http.StatusCreated, http.StatusConflict); err != nil {
		t.Fatal(err)
	}
	s.warmUp(ctx)
	before := s.settled(ctx, nil)
	t.Logf("goroutines before: %v", before)

	kept := s.keep(ctx)
	stop := s.unrest(ctx, proxy.Watch)
	for began := time.Now(); time.Since(began) < d || s.made < *pods; {
		s.comeOrGo(ctx)
		if err := s.noneTwice(ctx); err != nil {
			t.Fatalf("%v\n%s", err, s.Logs())
		}
		if t.Failed() {
			break
		}
	}
	stop()
	t.Logf("%d pods created, %d deleted; kills: syncd %d, pleg %d, syncd between two calls %d", s.made, s.ended,
		s.kills["syncd"].Load(), s.kills["pleg"].Load(), s.kills["between two calls"].Load())
	s.eventually(ctx, "every pod has its containers, and every container its pod", s.agree)
	s.wantKept(ctx, kept)
	s.removeAll(ctx)
	s.eventually(ctx, "nothing is left", s.nothingLeft)
	t.Logf("goroutines after: %v; containerd keeps %d empty shims and %d records of sandboxes that were cut off", s.settled(ctx, before), s.shims, s.records)
}

// warmUp lets one pod of each kind live and go, so that all that services make once is made.
func (s *stage) warmUp(ctx context.Context) {
	s.t.Helper()
	for range kinds {
		s.create(ctx)
	}
	s.eventually(ctx, "the first pods are at rest", s.agree)
	s.removeAll(ctx)
}

// create makes one more pod, of each kind in turn.
func (s *stage) create(ctx context.Context) {
	s.t.Helper()
	k := kinds[s.made%len(kinds)]
	name := fmt.Sprintf("p%d", s.made)
	s.made++
	if err := s.accepted(ctx, http.MethodPost, podPath(""), k.manifest(name), http.StatusCreated, http.StatusConflict); err != nil {
		s.t.Fatal(err)
	}
	s.wanted[name] = k
}

// comeOrGo creates or deletes a pod, after a random pause.
func (s *stage) comeOrGo(ctx context.Context) {
	s.t.Helper()
	s.pause(ctx, time.Duration(s.rand.IntN(1200))*time.Millisecond)
	names := sortedNames(s.wanted)
	if len(names) < alive && s.rand.IntN(alive) >= len(names)/2 {
		s.create(ctx)
		return
	}
	name := names[s.rand.IntN(len(names))]
	if s.wanted[name] == steady && s.rand.IntN(2) == 0 || isKept(name) {
		return
	}
	s.remove(ctx, name, s.rand.IntN(4)-1)
}

// remove deletes a pod; a grace of -1 is its own.
func (s *stage) remove(ctx context.Context, name string, grace int) {
	s.t.Helper()
	path := podPath(name)
	if grace >= 0 {
		path += fmt.Sprintf("?gracePeriodSeconds=%d", grace)
	}
	// Not found: an answer before it was lost with the service that gave it.
	if err := s.accepted(ctx, http.MethodDelete, path, "", http.StatusOK, http.StatusNotFound); err != nil {
		s.t.Fatal(err)
	}
	delete(s.wanted, name)
	s.ended++
}

// removeAll deletes what is left and waits until it is gone.
func (s *stage) removeAll(ctx context.Context) {
	s.t.Helper()
	for _, name := range sortedNames(s.wanted) {
		s.remove(ctx, name, 1)
	}
	s.eventually(ctx, "all pods are gone", func(ctx context.Context) error {
		list, err := s.list(ctx)
		if err != nil || len(list) == 0 {
			return err
		}
		return wrong(list[0].Name, "%d pods are left; this one: annotations %v, deleted %v, %s", len(list), list[0].Annotations, list[0].DeletionTimestamp, brief(&list[0]))
	})
}

func (s *stage) pause(ctx context.Context, d time.Duration) {
	s.t.Helper()
	select {
	case <-time.After(d): // time passes: that is what is tested
	case <-ctx.Done():
		s.t.Fatal(ctx.Err())
	}
}

// unrest kills services at random moments until the returned function is called: from outside, and between two calls to the runtime.
func (s *stage) unrest(ctx context.Context, watch func(func(string, bool))) (stop func()) {
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(*seed, 1))
	chance := func(n int) bool {
		mu.Lock()
		defer mu.Unlock()
		return r.IntN(n) == 0
	}
	watch(func(method string, _ bool) {
		if changes[method] && chance(betweenCalls/3) || chance(betweenCalls*10) {
			s.kill("syncd", "between two calls")
		}
	})
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			mu.Lock()
			d, victim := time.Duration(r.Int64N(2*int64(killEvery))), []string{"syncd", "pleg"}[r.IntN(2)]
			mu.Unlock()
			select {
			case <-time.After(d): // a random moment
				s.kill(victim, victim)
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		watch(nil)
		cancel()
		<-done
	}
}

// changes are the calls that change something: between them a process leaves things half done.
var changes = map[string]bool{
	"RunPodSandbox": true, "StopPodSandbox": true, "RemovePodSandbox": true, "CreateContainer": true, "StartContainer": true, "StopContainer": true, "RemoveContainer": true,
}

// keptPods is how many pods nobody deletes.
const keptPods = 3

func keptName(i int) string { return fmt.Sprintf("kept-%d", i) }

func isKept(name string) bool { return len(name) > 4 && name[:4] == "kept" }

// keep makes the pods that stay.
func (s *stage) keep(ctx context.Context) map[string]harness.Life {
	s.t.Helper()
	kept := make(map[string]harness.Life)
	for i := range keptPods {
		if err := s.accepted(ctx, http.MethodPost, podPath(""), steady.manifest(keptName(i)), http.StatusCreated); err != nil {
			s.t.Fatal(err)
		}
		s.wanted[keptName(i)] = steady
		p, err := s.WaitReady(ctx, namespace, keptName(i))
		if err != nil {
			s.t.Fatal(err)
		}
		kept[keptName(i)] = harness.LifeOf(p)
	}
	return kept
}

func (s *stage) wantKept(ctx context.Context, kept map[string]harness.Life) {
	s.t.Helper()
	for name, was := range kept {
		p, err := s.Pod(ctx, namespace, name)
		if err != nil || p == nil {
			s.t.Fatalf("pod %s: %v, %v", name, p, err)
		}
		if is := harness.LifeOf(p); is != was {
			s.t.Errorf("%s is %+v, was %+v\n%s", name, is, was, s.Explain(ctx, namespace, name))
		}
	}
}

// noneTwice wants no container to run twice and no pod to have two sandboxes.
func (s *stage) noneTwice(ctx context.Context) error {
	list, err := s.client.ListPods(ctx, cri.Filter{})
	if err != nil {
		return err
	}
	for i := range list {
		runs := make(map[string]string)
		for _, c := range list[i].Running() {
			if other, twice := runs[c.Name]; twice {
				return fmt.Errorf("container %s of pod %s (%s) runs twice: %s and %s", c.Name, list[i].Name, list[i].UID, c.ID, other)
			}
			runs[c.Name] = c.ID
		}
		if n := ready(&list[i]); n > 1 {
			return fmt.Errorf("pod %s (%s) has %d ready sandboxes", list[i].Name, list[i].UID, n)
		}
	}
	return nil
}

func ready(p *pod.RuntimePod) int {
	n := 0
	for _, s := range p.Sandboxes {
		if s.Ready {
			n++
		}
	}
	return n
}
