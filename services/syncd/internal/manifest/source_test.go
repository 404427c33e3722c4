package manifest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/bustest"
	"github.com/podplane/podplane/internal/events"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/admission"
	"github.com/podplane/podplane/services/syncd/internal/manifest"
	"github.com/podplane/podplane/services/syncd/internal/store"
)

// told are the Events.
type told chan string

func (c told) Event(ref events.ObjectRef, eventType, reason, format string, args ...any) {
	c.EventContext(context.Background(), ref, eventType, reason, format, args...)
}

func (c told) EventContext(_ context.Context, ref events.ObjectRef, eventType, reason, format string, args ...any) {
	c <- ref.Kind + " " + ref.Name + " " + eventType + " " + reason + " " + fmt.Sprintf(format, args...)
}

// logged keeps the lines of the log.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

type rig struct {
	t       *testing.T
	dir     string
	remote  manifest.Remote
	bus     *bustest.Bus
	store   *store.Feed
	changes chan store.PodChange
	told    told
	log     logged
	stop    func()
}

var node = admission.Node{Name: "Node-1", MaxPods: 3}

func start(t *testing.T) *rig {
	t.Helper()
	return startWith(t, manifest.Remote{})
}

func startWith(t *testing.T, remote manifest.Remote) *rig {
	t.Helper()
	r := &rig{t: t, dir: filepath.Join(t.TempDir(), "manifests"), remote: remote, bus: bustest.New(t)}
	if err := os.Mkdir(r.dir, 0o750); err != nil {
		t.Fatal(err)
	}
	r.run(r.dir)
	return r
}

// run starts a store and a source, as a new process would.
func (r *rig) run(dir string) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	f, err := store.Open(ctx, r.bus.Connect(bus.ServiceSyncd, node.Name), store.Options{Node: node.Name, Admit: node.Fit})
	if err != nil {
		r.t.Fatal(err)
	}
	r.store, r.changes, r.told = f, make(chan store.PodChange, 64), make(told, 64)
	ended := make(chan error, 2)
	go func() { ended <- f.Run(ctx) }()
	unsubscribe := f.Subscribe(func(c store.PodChange) { r.changes <- c })
	s, err := manifest.New(f, manifest.Options{
		Dir: dir, Remote: r.remote, Node: node, Events: r.told, Log: slog.New(slog.NewTextHandler(io.MultiWriter(r.t.Output(), &r.log), nil)),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	go func() { ended <- s.Run(ctx) }()
	stopped := false
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		unsubscribe()
		cancel()
		for range 2 {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				r.t.Errorf("ended with %v", err)
			}
		}
	}
	r.t.Cleanup(r.stop)
}

// put places a file as an editor does: written elsewhere, then renamed.
func (r *rig) put(name, content string) {
	r.t.Helper()
	temporary := filepath.Join(r.dir, "."+name+".tmp")
	if err := os.WriteFile(temporary, []byte(content), 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(temporary, filepath.Join(r.dir, name)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) remove(name string) {
	r.t.Helper()
	if err := os.Remove(filepath.Join(r.dir, name)); err != nil {
		r.t.Fatal(err)
	}
}

// change waits for a change that is as wanted.
func (r *rig) change(what string, want func(store.PodChange) bool) store.PodChange {
	r.t.Helper()
	deadline := time.After(15 * time.Second)
	for {
		select {
		case c := <-r.changes:
			if want(c) {
				return c
			}
		case <-deadline:
			r.t.Fatalf("not in time: %s", what)
		}
	}
}

func (r *rig) stored(name string) store.PodChange {
	r.t.Helper()
	return r.change(name+" stored", func(c store.PodChange) bool {
		return !c.Deleted && c.Pod.Name == name && c.Pod.DeletionTimestamp == nil
	})
}

func (r *rig) terminating(uid string) {
	r.t.Helper()
	r.change(uid+" terminating", func(c store.PodChange) bool { return !c.Deleted && c.UID == uid && c.Pod.DeletionTimestamp != nil })
}

func (r *rig) event(words ...string) string {
	r.t.Helper()
	deadline := time.After(15 * time.Second)
	for {
		select {
		case e := <-r.told:
			all := true
			for _, w := range words {
				all = all && strings.Contains(e, w)
			}
			if all {
				return e
			}
			r.t.Logf("another event: %s", e)
		case <-deadline:
			r.t.Fatalf("no event with %q", words)
		}
	}
}

// gone does what a pod's worker does at the end.
func (r *rig) gone(uid string) {
	r.t.Helper()
	if err := r.store.Remove(r.t.Context(), uid); err != nil {
		r.t.Fatal(err)
	}
}

func yaml(name, image string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata:\n  name: " + name + "\nspec:\n  containers:\n  - name: a\n    image: " + image + "\n"
}

func TestLifeOfAFile(t *testing.T) {
	r := start(t)
	r.put("web.yaml", yaml("web", "one:1"))
	first := r.stored("web-node-1")
	if first.Record.GetSource() != podplanev1.Source_SOURCE_FILE || first.Record.GetOrigin() != filepath.Join(r.dir, "web.yaml") ||
		first.Pod.Annotations[manifest.AnnotationHash] != first.UID || first.Pod.Spec.Containers[0].TerminationMessagePath == "" {
		t.Errorf("got %+v", first)
	}

	// Another form of the same content is the same pod; other content is another one, which waits for the first to be gone.
	r.put("web.yaml", "# the same\n"+yaml("web", "\"one:1\""))
	r.put("web.yaml", yaml("web", "two:1"))
	r.terminating(first.UID)
	r.event("Pod web-node-1", "WaitingForDeletion", "web.yaml")
	r.gone(first.UID)
	second := r.stored("web-node-1")
	if second.UID == first.UID || second.Pod.Spec.Containers[0].Image != "two:1" {
		t.Errorf("got %+v", second.Pod)
	}

	r.remove("web.yaml")
	r.terminating(second.UID)
	r.gone(second.UID)

	// What comes back is the pod that it was.
	r.put("web.yaml", yaml("web", "one:1"))
	if back := r.stored("web-node-1"); back.UID != first.UID {
		t.Errorf("got UID %s, want %s", back.UID, first.UID)
	}
}

func TestABadFileIsToldAndTheOthersCount(t *testing.T) {
	r := start(t)
	r.put("a.yaml", "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\nspec:\n  containers:\n  - name: a\n    imagee: x\n")
	r.event("Node Node-1 Warning FailedValidation", "a.yaml:8:", "spec.containers[0].imagee", `did you mean "image"?`)
	if l := r.log.String(); !strings.Contains(l, "level=ERROR") || !strings.Contains(l, "a.yaml:8:") {
		t.Errorf("the log does not name the file and the line:\n%s", l)
	}
	r.put("b.json", "{\n  \"kind\": \"Pod\",,\n}")
	r.event("FailedValidation", "b.json:2:")
	r.put("c.yml", "kind: Pod\napiVersion: v1\nmetadata: {name: c}\nspec:\n  restartPolicy: Often\n  containers:\n  - {name: a, image: b}\n")
	r.event("FailedValidation", "c.yml:5:", "spec.restartPolicy", `"Always", "OnFailure", "Never"`)
	r.put("d.yaml", "kind: List\napiVersion: v1\n")
	r.event("FailedValidation", "d.yaml:1:", `supported values: "Pod"`)
	r.put("e.txt", "not a manifest")
	r.put("good.yaml", yaml("good", "x:1"))
	good := r.stored("good-node-1")

	// A file that breaks keeps its pod until it is mended or removed.
	r.put("good.yaml", yaml("good", "x:1")+"  nonsense: [\n")
	r.event("FailedValidation", "good.yaml:")
	if c, ok := r.store.Pod(good.UID); !ok || c.Pod.DeletionTimestamp != nil {
		t.Error("a broken file ended its pod")
	}
	r.remove("good.yaml")
	r.terminating(good.UID)
}

func TestANewProcessKeepsThePods(t *testing.T) {
	r := start(t)
	r.put("kept.yaml", yaml("kept", "x:1"))
	kept := r.stored("kept-node-1")
	r.put("removed.yaml", yaml("removed", "x:1"))
	removed := r.stored("removed-node-1")
	r.stop()
	r.remove("removed.yaml")
	r.put("added.yaml", yaml("added", "x:1"))
	r.run(r.dir)
	r.terminating(removed.UID)
	r.stored("added-node-1")
	if c, ok := r.store.Pod(kept.UID); !ok || c.Pod.DeletionTimestamp != nil || c.Record.GetStoredAt().AsTime() != kept.Record.GetStoredAt().AsTime() {
		t.Errorf("got %+v", c)
	}
	r.stop()
	r.run("") // without a directory, nothing of it stays
	r.terminating(kept.UID)
}

func TestWhatDoesNotFitIsTriedAgain(t *testing.T) {
	r := start(t)
	for _, name := range []string{"a", "b", "c"} {
		r.put(name+".yaml", yaml(name, "x:1"))
	}
	a := r.stored("a-node-1")
	for len(r.store.Snapshot()) < 3 {
		r.change("all stored", func(store.PodChange) bool { return true })
	}
	r.put("d.yaml", yaml("d", "x:1"))
	r.event("FailedValidation", "d.yaml", "pods, requested: 1, used: 3, capacity: 3")
	r.remove("a.yaml")
	r.terminating(a.UID)
	r.gone(a.UID)
	r.stored("d-node-1")
}

func TestTwoFilesOfOneName(t *testing.T) {
	r := start(t)
	r.put("a.yaml", yaml("web", "x:1"))
	a := r.stored("web-node-1")
	r.put("b.yaml", yaml("web", "x:1"))
	r.event("Pod web-node-1 Warning FailedValidation", "b.yaml", "the name of pod default/web-node-1 is taken")
	r.remove("a.yaml")
	r.terminating(a.UID)
	r.gone(a.UID)
	if b := r.stored("web-node-1"); b.Record.GetOrigin() != filepath.Join(r.dir, "b.yaml") {
		t.Errorf("got %s", b.Record.GetOrigin())
	}
}

// FuzzStatic looks for manifests that crash the reader or get an unstable identity.
func FuzzStatic(f *testing.F) {
	f.Add([]byte(yaml("a", "b:1")))
	f.Add([]byte("kind: Pod\napiVersion: v1\nmetadata: {name: a, uid: ../x}\nspec: {containers: [{name: a, image: b}]}\n---\n"))
	from := manifest.Origin{Source: podplanev1.Source_SOURCE_FILE, Path: "/m/x.yaml"}
	f.Fuzz(func(t *testing.T, data []byte) {
		one, err := manifest.Static(from, data, node)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "/m/x.yaml") {
				t.Fatalf("no file in %q", err)
			}
			return
		}
		two, err := manifest.Static(from, data, node)
		if err != nil || one.UID != two.UID || len(one.UID) != 32 {
			t.Fatalf("%s and %s: %v", one.UID, two.UID, err)
		}
	})
}
