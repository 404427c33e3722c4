package store_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/bustest"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/admission"
	"github.com/podplane/podplane/services/syncd/internal/store"
)

// connecter is a bus of one server or more.
type connecter interface {
	Connect(service, node string) *bus.Conn
}

// onNode is the store of a node that takes so many pods.
func onNode(t *testing.T, b connecter, node string, most int) *store.Feed {
	t.Helper()
	f, err := store.Open(t.Context(), b.Connect(bus.ServiceSyncd, node), store.Options{
		Node: node, Admit: admission.Node{Name: node, MaxPods: most}.Fit,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = f.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	<-f.Synced()
	return f
}

func podOn(node, name string) store.NewPod {
	return store.NewPod{
		Pod:    &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1.PodSpec{NodeName: node}},
		Source: podplanev1.Source_SOURCE_API,
	}
}

// TestNodesRaceForNames lets three nodes store pods of the same names at the same time: each name is stored once, on one server of the bus and on
// a cluster of three.
func TestNodesRaceForNames(t *testing.T) {
	t.Run("one server", func(t *testing.T) { raceForNames(t, bustest.New(t)) })
	t.Run("three servers", func(t *testing.T) { raceForNames(t, bustest.NewCluster(t)) })
}

func raceForNames(t *testing.T, b connecter) {
	t.Helper()
	nodes := map[string]*store.Feed{}
	for _, n := range []string{"a", "b", "c"} {
		nodes[n] = onNode(t, b, n, 1000)
	}
	const names = 15
	var stored [names]atomic.Int32
	var wg sync.WaitGroup
	for i := range names {
		for n, f := range nodes {
			wg.Go(func() {
				switch _, err := f.CreatePod(t.Context(), podOn(n, fmt.Sprintf("web-%d", i))); {
				case err == nil:
					stored[i].Add(1)
				case !fault.Is(err, fault.AlreadyExists):
					t.Errorf("web-%d on %s: %v", i, n, err)
				}
			})
		}
	}
	wg.Wait()
	for i := range names {
		if n := stored[i].Load(); n != 1 {
			t.Errorf("web-%d was stored %d times", i, n)
		}
	}
}

// TestANameTakenBetweenAttempts: a creation that the bus did not confirm is tried again, and by then the name is another node's.
func TestANameTakenBetweenAttempts(t *testing.T) {
	b := bustest.New(t)
	one, two := onNode(t, b, "a", 10), onNode(t, b, "b", 10)
	attempts := 0
	one.BeforeCreations(func() error {
		if attempts++; attempts > 1 {
			return nil
		}
		if _, err := two.CreatePod(t.Context(), podOn("b", "web")); err != nil {
			t.Error(err)
		}
		return fault.New(fault.Unavailable, "no answer")
	})
	if _, err := one.CreatePod(t.Context(), podOn("a", "web")); !fault.Is(err, fault.AlreadyExists) || attempts != 1 {
		t.Errorf("create: %v after %d attempts to store; want that the name is taken", err, attempts)
	}
}

// TestEachNodeHasItsOwnRoomAndPods fills one node: the other one takes as many, shows all and hands its own subscribers its own only.
func TestEachNodeHasItsOwnRoomAndPods(t *testing.T) {
	b := bustest.New(t)
	one, two := onNode(t, b, "a", 2), onNode(t, b, "b", 2)
	for i := range 2 {
		for n, f := range map[string]*store.Feed{"a": one, "b": two} {
			if _, err := f.CreatePod(t.Context(), podOn(n, fmt.Sprintf("web-%s-%d", n, i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := two.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all, _ := two.Pods().List("", nil); len(all) != 4 {
		t.Errorf("%d pods are shown, want 4", len(all))
	}
	var seen []string
	two.Subscribe(func(c store.PodChange) { seen = append(seen, c.Pod.Name) })()
	if len(seen) != 2 {
		t.Errorf("subscribers of b saw %v", seen)
	}
	for _, name := range seen {
		if !strings.HasPrefix(name, "web-b-") {
			t.Errorf("a subscriber of b saw %s", name)
		}
	}
}

// TestAPodIsChangedOnItsNode tries to change a pod of another node, and then where the refusal points to, with the version that was seen.
func TestAPodIsChangedOnItsNode(t *testing.T) {
	b := bustest.New(t)
	one, two := onNode(t, b, "a", 10), onNode(t, b, "b", 10)
	made, err := two.CreatePod(t.Context(), podOn("b", "web"))
	if err != nil {
		t.Fatal(err)
	}
	if err := one.WaitRevision(t.Context(), two.Revision(made.UID)); err != nil {
		t.Fatal(err)
	}
	here, _ := one.Pods().Get("default", "web")
	version := here.ResourceVersion()
	pre := store.Preconditions{ResourceVersion: &version}
	change := func(p *v1.Pod) (*v1.Pod, error) {
		p.Labels = map[string]string{"changed": "yes"}
		return p, nil
	}
	_, err = one.UpdatePod(t.Context(), "default", "web", pre, false, change)
	var e *store.Elsewhere
	if !errors.As(err, &e) || e.Node != "b" || !fault.Is(err, fault.Unavailable) || fault.RetryAfter(err) == 0 {
		t.Fatalf("got %v", err)
	}
	if _, err := two.UpdatePod(t.Context(), "default", "web", pre, false, change); !fault.Is(err, fault.Conflict) {
		t.Errorf("a version of another replica: %v", err)
	}
	pre.Seen = &e.Seen
	if _, err := two.UpdatePod(t.Context(), "default", "web", pre, false, change); err != nil {
		t.Errorf("a version of another replica and what it means: %v", err)
	}
	if _, err := two.UpdatePod(t.Context(), "default", "web", pre, false, change); !fault.Is(err, fault.Conflict) {
		t.Errorf("a version that is no longer so: %v", err)
	}
	if _, err := one.DeletePod(t.Context(), "default", "web", store.DeleteOptions{}); !errors.As(err, &e) {
		t.Errorf("delete: %v", err)
	}
	if _, err := one.CreatePod(t.Context(), podOn("a", "web")); !fault.Is(err, fault.AlreadyExists) || !strings.Contains(err.Error(), `on node "b"`) {
		t.Errorf("the same name: %v", err)
	}
}
