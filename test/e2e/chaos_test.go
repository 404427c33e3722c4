package e2e_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/testkit"
	"github.com/podplane/podplane/test/harness"
)

var (
	seed    = flag.Uint64("seed", 20261120, "seed of the random kills")
	moments = flag.Int("moments", 50, "how many random moments something is killed at")
)

// TestKillAtRandomMoments kills a random service, the bus or everything at 50
// random moments, while pods start, run and are deleted. No running container
// may be restarted or lost; after each kill everything converges.
func TestKillAtRandomMoments(t *testing.T) {
	s, ctx := newStack(t), testContextOf(t, 20*time.Minute)
	rnd := rand.New(rand.NewPCG(*seed, 0))
	t.Logf("seed %d, %d moments", *seed, *moments)
	for i := range 3 {
		name := fmt.Sprintf("steady-%d", i)
		if _, err := s.Apply(ctx, ns(t), manifest(name, survivor)); err != nil {
			t.Fatal(err)
		}
	}
	steady := map[string]harness.Life{}
	for i := range 3 {
		name := fmt.Sprintf("steady-%d", i)
		p, err := s.WaitReady(ctx, ns(t), name)
		if err != nil {
			t.Fatal(err)
		}
		steady[name] = harness.LifeOf(p)
	}
	var worst time.Duration
	for m := range *moments {
		took, err := moment(ctx, t, s, rnd, m)
		if err != nil {
			t.Fatalf("moment %d: %v\n%s", m, err, s.Logs())
		}
		worst = max(worst, took)
		for name, want := range steady {
			p, err := s.Pod(ctx, ns(t), name)
			if err != nil || p == nil {
				t.Fatalf("moment %d: pod %s: %v, %v", m, name, p, err)
			}
			if got := harness.LifeOf(p); got != want {
				t.Fatalf("moment %d: %s is %+v, was %+v", m, name, got, want)
			}
		}
	}
	t.Logf("slowest convergence after a return: %v", worst.Round(time.Millisecond))
	wantNoStrayContainers(t, s, 3)
}

// moment starts one pod, kills something at a random time of its start or of
// its deletion, and waits until the pod is Ready or gone. It returns how long
// that took after what was killed had returned.
func moment(ctx context.Context, t *testing.T, s *harness.Stack, rnd *rand.Rand, m int) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, momentTimeout)
	defer cancel()
	name := fmt.Sprintf("m-%d", m)
	victim := append([]string{"nats", "all"}, harness.Services...)[rnd.IntN(2+len(harness.Services))]
	inDeletion := rnd.IntN(2) == 0
	delay := time.Duration(rnd.IntN(400)) * time.Millisecond
	if err := applyUntilStored(ctx, s, ns(t), manifest(name, survivor)); err != nil {
		return 0, err
	}
	if inDeletion {
		if _, err := s.WaitReady(ctx, ns(t), name); err != nil {
			return 0, err
		}
		if err := s.Delete(ctx, ns(t), name, 1); err != nil {
			return 0, err
		}
	}
	wait(t, ctx, delay)
	if err := kill(ctx, s, victim); err != nil {
		return 0, fmt.Errorf("kill %s: %w", victim, err)
	}
	began := time.Now()
	what := fmt.Sprintf("%s killed %v into its start", victim, delay)
	if inDeletion {
		what = fmt.Sprintf("%s killed %v into its deletion", victim, delay)
		if err := s.WaitGone(ctx, ns(t), name); err != nil {
			return 0, fmt.Errorf("%s: %w", what, err)
		}
	} else {
		p, err := s.WaitReady(ctx, ns(t), name)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", what, err)
		}
		if n := p.Status.ContainerStatuses[0].RestartCount; n != 0 {
			return 0, fmt.Errorf("%s: the container was restarted %d times", what, n)
		}
		if err := deleteUntilAccepted(ctx, s, ns(t), name); err != nil {
			return 0, err
		}
		if err := s.WaitGone(ctx, ns(t), name); err != nil {
			return 0, fmt.Errorf("%s, then deleted: %w", what, err)
		}
	}
	took := time.Since(began)
	t.Logf("moment %d: %s: converged after %v", m, what, took.Round(time.Millisecond))
	if took > back+startAndStop {
		// Perhaps the host is slow: what does a pod take now that nothing is killed?
		quiet, err := undisturbed(ctx, t, s, name+"-quiet")
		if err != nil {
			return 0, err
		}
		if took > back+3*quiet {
			return 0, fmt.Errorf("%s: converged only after %v, while a pod takes %v to start and to end", what, took, quiet)
		}
	}
	return took, nil
}

// undisturbed is how long a pod takes to start and to end.
func undisturbed(ctx context.Context, t *testing.T, s *harness.Stack, name string) (time.Duration, error) {
	began := time.Now()
	if _, err := s.Apply(ctx, ns(t), manifest(name, survivor)); err != nil {
		return 0, err
	}
	if _, err := s.WaitReady(ctx, ns(t), name); err != nil {
		return 0, err
	}
	if err := s.Delete(ctx, ns(t), name, 1); err != nil {
		return 0, err
	}
	return time.Since(began), s.WaitGone(ctx, ns(t), name)
}

// momentTimeout ends a moment that does not converge at all, with a message that
// says what was killed and what the pod waits for.
const momentTimeout = time.Minute

// startAndStop is what a pod's own start and end may take on a slow host, on
// top of the time to come back.
const startAndStop = 5 * time.Second

func kill(ctx context.Context, s *harness.Stack, victim string) error {
	if victim != "all" {
		err := s.Kill(victim)
		if errors.Is(err, os.ErrProcessDone) || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	if err := s.KillAll(ctx); err != nil {
		return err
	}
	return s.Start(ctx)
}

func deleteUntilAccepted(ctx context.Context, s *harness.Stack, namespace, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := s.Delete(ctx, namespace, name, 1)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("delete was never accepted: %w", err)
		case <-tick.C:
		}
	}
}

// TestRuntimeRestarts stops containerd under running pods and starts it again:
// the pods keep running, none is reported dead, RuntimeReady goes False and back.
func TestRuntimeRestarts(t *testing.T) {
	node := testkit.NewNode(t)
	s, ctx := newStackOn(t, node), testContext(t)
	if _, err := s.Apply(ctx, ns(t), manifest("survivor", survivor)); err != nil {
		t.Fatal(err)
	}
	p, err := s.WaitReady(ctx, ns(t), "survivor")
	if err != nil {
		t.Fatal(err)
	}
	want := harness.LifeOf(p)
	node.Stop(t)
	eventually(t, ctx, "RuntimeReady is False", func() bool { return condition(t, s, "RuntimeReady") == "False" })
	if p, err := s.Pod(ctx, ns(t), "survivor"); err != nil || p.Status.Phase != corev1.PodRunning || p.Status.ContainerStatuses[0].State.Running == nil {
		t.Errorf("pod while the runtime is away: %+v, %v; want it Running", p, err)
	}
	node.Restart(t)
	eventually(t, ctx, "RuntimeReady is True", func() bool { return condition(t, s, "RuntimeReady") == "True" })
	wantSame(t, ctx, s, "survivor", want)
	if _, err := s.Apply(ctx, ns(t), manifest("fresh", survivor)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.WaitReady(ctx, ns(t), "fresh"); err != nil {
		t.Fatal(err)
	}
}
