package store_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/bustest"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/store"
	"github.com/podplane/podplane/services/syncd/internal/watchcache"
)

const node = "node-1"

func feed(t *testing.T, b *bustest.Bus) *store.Feed {
	t.Helper()
	f, _ := stoppable(t, b)
	return f
}

// stoppable also gives a function that ends the store as the end of its process would.
func stoppable(t *testing.T, b *bustest.Bus) (*store.Feed, func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	f, err := store.Open(ctx, b.Connect(bus.ServiceSyncd, node), store.Options{Node: node, Patience: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	select {
	case <-f.Synced():
	case <-time.After(10 * time.Second):
		t.Fatal("not synced in time")
	}
	return f, stop
}

func newPod(name string) store.NewPod {
	return store.NewPod{
		Pod:    &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1.PodSpec{NodeName: node}},
		Source: podplanev1.Source_SOURCE_API,
	}
}

// next gives the next of the changes, which must come soon.
func next[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(10 * time.Second):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

func TestSubscribersSeeEachChangeOnce(t *testing.T) {
	b := bustest.New(t)
	f := feed(t, b)
	before, err := f.CreatePod(t.Context(), newPod("before"))
	if err != nil {
		t.Fatal(err)
	}
	changes := make(chan store.PodChange, 16)
	defer f.Subscribe(func(c store.PodChange) { changes <- c })()
	if c := next(t, changes); c.UID != before.UID || c.Deleted {
		t.Errorf("the present state: got %+v", c)
	}
	o, err := f.CreatePod(t.Context(), newPod("web"))
	if err != nil {
		t.Fatal(err)
	}
	if c := next(t, changes); c.UID != o.UID || !c.Fresh || c.Pod.Name != "web" || c.Record.GetPod() == nil {
		t.Errorf("created: got %+v", c)
	}
	if _, err := f.DeletePod(t.Context(), "default", "web", store.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if c := next(t, changes); c.Pod.DeletionTimestamp == nil || c.Fresh {
		t.Errorf("marked: got %+v", c)
	}
	if err := f.Remove(t.Context(), o.UID); err != nil {
		t.Fatal(err)
	}
	if c := next(t, changes); !c.Deleted || c.UID != o.UID || c.Pod.Name != "web" {
		t.Errorf("removed: got %+v", c)
	}
	// What comes by way of the watch has been seen: the next change is one of ours.
	last, err := f.CreatePod(t.Context(), newPod("last"))
	if err != nil {
		t.Fatal(err)
	}
	if c := next(t, changes); c.UID != last.UID {
		t.Errorf("got %+v", c)
	}
}

func TestAnotherProcessFindsEverything(t *testing.T) {
	b := bustest.New(t)
	f, stop := stoppable(t, b)
	kept, err := f.CreatePod(t.Context(), newPod("kept"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.CreateObject(t.Context(), store.KindSecret, metav1.ObjectMeta{Namespace: "ns", Name: "s"}, []byte(`{"metadata":{"name":"s","namespace":"ns"},"data":{"a":"Yg=="}}`), false); err != nil {
		t.Fatal(err)
	}
	// A removal that was interrupted between the pod's record and its status.
	statuses, err := bus.Open(t.Context(), b.Connect(bus.ServiceSyncd, node), bus.Status)
	if err != nil {
		t.Fatal(err)
	}
	for uid, phase := range map[string]string{kept.UID: "Running", "gone": "Failed"} {
		rec := &podplanev1.StatusRecord{Node: node, Uid: uid, Status: []byte(`{"phase":"` + phase + `"}`)}
		if _, err := statuses.Put(t.Context(), bus.PodKey(node, uid), rec); err != nil {
			t.Fatal(err)
		}
	}
	stop()

	g := feed(t, b)
	o, ok := g.Pods().Get("default", "kept")
	if !ok || o.UID != kept.UID || o.Fields[store.FieldPhase] != "Running" {
		t.Fatalf("got %+v", o)
	}
	if o.Version <= kept.Version {
		t.Errorf("version %d of the new process is not above %d of the old one", o.Version, kept.Version)
	}
	if sec, ok := g.Secret("ns", "s"); !ok || string(sec.Data["a"]) != "b" {
		t.Errorf("got %v", sec)
	}
	watch, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err = statuses.Watch(watch, bus.PodKey(node, "gone"), bus.Handler[*podplanev1.StatusRecord]{
		Apply: func(e bus.Entry[*podplanev1.StatusRecord]) {
			if e.Deleted {
				cancel()
			}
		},
		Synced: func() {
			if _, err := statuses.Get(t.Context(), bus.PodKey(node, "gone")); fault.Is(err, fault.NotFound) {
				cancel()
			}
		},
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the status of a pod that is gone stays: %v", err)
	}
	if _, err := statuses.Get(t.Context(), bus.PodKey(node, kept.UID)); err != nil {
		t.Errorf("the status of a pod that is there: %v", err)
	}
}

func TestFieldsOfANewerVersionSurvive(t *testing.T) {
	b := bustest.New(t)
	f := feed(t, b)
	pods, err := bus.Open(t.Context(), b.Connect(bus.ServiceSyncd, node), bus.Pods)
	if err != nil {
		t.Fatal(err)
	}
	changes := make(chan store.PodChange, 4)
	defer f.Subscribe(func(c store.PodChange) { changes <- c })()
	rec := &podplanev1.PodRecord{Node: node, Uid: "u", Namespace: "default", Name: "web", Source: podplanev1.Source_SOURCE_API, Pod: []byte(`{"metadata":{"name":"web","namespace":"default","uid":"u","newMeta":1},"spec":{"newSpec":{"a":[1]}}}`)}
	rec.Schema = bus.Schema + 1
	rec.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 1999, protowire.BytesType), "new field"))
	if _, err := pods.Create(t.Context(), bus.PodKey(node, "u"), rec); err != nil {
		t.Fatal(err)
	}
	next(t, changes)
	o, err := f.DeletePod(t.Context(), "default", "web", store.DeleteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out, err := o.JSON()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"newMeta":1`, `"newSpec":{"a":[1]}`, `"deletionGracePeriodSeconds":30`, `"resourceVersion":"` + o.ResourceVersion() + `"`} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %s in %s", want, out)
		}
	}
	stored, err := pods.Get(t.Context(), bus.PodKey(node, "u"))
	if err != nil || stored.Value.GetSchema() != bus.Schema+1 || !bytes.Equal(stored.Value.ProtoReflect().GetUnknown(), rec.ProtoReflect().GetUnknown()) {
		t.Errorf("what the record itself had of a newer version: %v %v", stored.Value, err)
	}

	objects, err := bus.Open(t.Context(), b.Connect(bus.ServiceSyncd, node), bus.Objects)
	if err != nil {
		t.Fatal(err)
	}
	key := bus.ObjectKey("default", "configmap", "c")
	object := &podplanev1.ObjectRecord{Schema: bus.Schema + 1, Kind: "configmap", Namespace: "default", Name: "c", Object: []byte(`{"metadata":{"name":"c","namespace":"default"}}`)}
	object.ProtoReflect().SetUnknown(rec.ProtoReflect().GetUnknown())
	changed := make(chan store.ObjectChange, 4)
	defer f.SubscribeObjects(func(c store.ObjectChange) { changed <- c })()
	if _, err := objects.Create(t.Context(), key, object); err != nil {
		t.Fatal(err)
	}
	next(t, changed)
	if _, err := f.UpdateObject(t.Context(), "configmap", "default", "c", store.Preconditions{}, false, func(old []byte) (metav1.ObjectMeta, []byte, error) {
		return metav1.ObjectMeta{Name: "c", Namespace: "default"}, bytes.Replace(old, []byte(`{"metadata"`), []byte(`{"data":{"a":"b"},"metadata"`), 1), nil
	}); err != nil {
		t.Fatal(err)
	}
	e, err := objects.Get(t.Context(), key)
	if err != nil || e.Value.GetSchema() != bus.Schema+1 || !bytes.Equal(e.Value.ProtoReflect().GetUnknown(), object.ProtoReflect().GetUnknown()) || !bytes.Contains(e.Value.GetObject(), []byte(`"a":"b"`)) {
		t.Errorf("what an object's record had of a newer version: %v %v", e.Value, err)
	}
}

func TestAStaticPodMayComeBackUnderItsUID(t *testing.T) {
	b := bustest.New(t)
	f := feed(t, b)
	static := func() store.NewPod {
		n := newPod("web-node-1")
		n.Pod.UID, n.Source = "0123456789abcdef", podplanev1.Source_SOURCE_FILE
		return n
	}
	for range 3 {
		if _, err := f.CreatePod(t.Context(), static()); err != nil {
			t.Fatal(err)
		}
		if _, err := f.CreatePod(t.Context(), static()); !fault.Is(err, fault.AlreadyExists) {
			t.Errorf("twice: got %v", err)
		}
		if err := f.Remove(t.Context(), "0123456789abcdef"); err != nil {
			t.Fatal(err)
		}
		if _, ok := f.Pod("0123456789abcdef"); ok {
			t.Error("still there after its removal")
		}
	}
}

// flaky is a bucket whose connection fails as told.
type flaky struct {
	mu     sync.Mutex
	stored map[string]*podplanev1.PodRecord
	rev    uint64
	// lose gives for the n-th write whether the write and whether its answer are lost.
	lose  func(n int) (write, answer bool)
	n     int
	calls chan string
}

func (f *flaky) write(key string, do func() error) (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
	write, answer := f.lose(f.n)
	if write {
		return 0, fault.New(fault.Unavailable, "lost on the way")
	}
	if err := do(); err != nil {
		return 0, err
	}
	f.rev++
	if answer {
		return 0, fault.New(fault.Unavailable, "the answer was lost")
	}
	return f.rev, nil
}

func (f *flaky) Create(_ context.Context, key string, v *podplanev1.PodRecord) (uint64, error) {
	return f.write(key, func() error {
		if f.stored[key] != nil {
			return fault.New(fault.AlreadyExists, "exists")
		}
		f.stored[key] = proto.CloneOf(v)
		return nil
	})
}

func (f *flaky) CreateAfter(ctx context.Context, key string, v *podplanev1.PodRecord, _ string, _ uint64) (uint64, error) {
	return f.Create(ctx, key, v)
}

func (f *flaky) LastRevision(context.Context, string) (uint64, error) { return 0, nil }

func (f *flaky) Update(_ context.Context, key string, v *podplanev1.PodRecord, rev uint64) (uint64, error) {
	return f.write(key, func() error {
		if rev != f.rev {
			return fault.New(fault.Conflict, "at another revision")
		}
		f.stored[key] = proto.CloneOf(v)
		return nil
	})
}

func (f *flaky) Delete(_ context.Context, key string) error {
	_, err := f.write(key, func() error { delete(f.stored, key); return nil })
	if err == nil {
		f.calls <- "delete"
	}
	return err
}

func (f *flaky) DeleteRevision(ctx context.Context, key string, _ uint64) error {
	return f.Delete(ctx, key)
}

func (f *flaky) Lookup(_ context.Context, key string) (*podplanev1.PodRecord, uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if v := f.stored[key]; v != nil {
		return v, f.rev, nil
	}
	return nil, 0, fault.New(fault.NotFound, "none")
}

func onFlaky(t *testing.T, lose func(int) (write, answer bool)) (*store.Store, *flaky) {
	t.Helper()
	f := &flaky{stored: map[string]*podplanev1.PodRecord{}, lose: lose, calls: make(chan string, 16)}
	s := store.New(f, nil, nil, store.Options{Node: node, Patience: 300 * time.Millisecond, Limits: watchcache.Limits{}})
	s.SayAllSynced()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); s.RunChores(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return s, f
}

func TestALostAnswerIsLookedUp(t *testing.T) {
	s, f := onFlaky(t, func(n int) (bool, bool) { return false, n == 1 || n == 3 })
	o, err := s.CreatePod(t.Context(), newPod("web"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.DeletePod(t.Context(), "default", "web", store.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if len(f.stored) != 1 || f.rev != 2 {
		t.Errorf("%d records, %d writes", len(f.stored), f.rev)
	}
	if c, ok := s.Pod(o.UID); !ok || c.Pod.DeletionTimestamp == nil {
		t.Errorf("got %+v", c.Pod)
	}
}

func TestAPodThatWasNotPromisedIsDeleted(t *testing.T) {
	healthy := make(chan struct{})
	s, f := onFlaky(t, func(n int) (bool, bool) {
		if n == 1 {
			return false, true // stored, but nobody is told
		}
		select {
		case <-healthy:
			return false, false
		default:
			return true, false
		}
	})
	if _, err := s.CreatePod(t.Context(), newPod("web")); !fault.Is(err, fault.Unavailable) || fault.RetryAfter(err) == 0 {
		t.Fatalf("got %v", err)
	}
	if _, ok := s.PodByName("default", "web"); ok {
		t.Error("it is shown")
	}
	close(healthy)
	next(t, f.calls)
	if len(f.stored) != 0 {
		t.Error("it is still stored")
	}
	if _, err := s.CreatePod(t.Context(), newPod("web")); err != nil {
		t.Errorf("the name is not free: %v", err)
	}
}

func TestNotSyncedIsUnavailable(t *testing.T) {
	s := store.New(nil, nil, nil, store.Options{Node: node, Patience: 10 * time.Millisecond})
	if _, err := s.CreatePod(t.Context(), newPod("web")); !fault.Is(err, fault.Unavailable) || fault.RetryAfter(err) == 0 {
		t.Errorf("got %v", err)
	}
}

func TestASlowAnswerDoesNotBringAPodBack(t *testing.T) {
	f := &flaky{stored: map[string]*podplanev1.PodRecord{}, lose: func(int) (bool, bool) { return false, false }, calls: make(chan string, 16)}
	s := store.New(f, nil, nil, store.Options{Node: node})
	s.SayAllSynced()
	o, err := s.CreatePod(t.Context(), newPod("web"))
	if err != nil {
		t.Fatal(err)
	}
	rec, rev, err := f.Lookup(t.Context(), bus.PodKey(node, o.UID))
	if err != nil {
		t.Fatal(err)
	}
	s.SayPodRemoved(o.UID, rev+2)
	s.SayPod(rec, rev+1)
	if _, ok := s.Pod(o.UID); ok {
		t.Error("an older revision brought the pod back")
	}
	s.SayPod(rec, rev+3)
	if _, ok := s.Pod(o.UID); !ok {
		t.Error("a newer revision did not count")
	}
}

func TestAStaticPodThatWasStoredUnansweredIsFound(t *testing.T) {
	healthy := false
	s, f := onFlaky(t, func(n int) (bool, bool) { return n > 1 && !healthy, n == 1 })
	static := func() store.NewPod {
		n := newPod("web-node-1")
		n.Pod.UID, n.Source = "0123456789abcdef", podplanev1.Source_SOURCE_FILE
		return n
	}
	if _, err := s.CreatePod(t.Context(), static()); !fault.Is(err, fault.Unavailable) {
		t.Fatalf("got %v", err)
	}
	f.mu.Lock()
	healthy = true
	f.mu.Unlock()
	o, err := s.CreatePod(t.Context(), static())
	if err != nil || o.UID != "0123456789abcdef" {
		t.Errorf("got %+v, %v", o, err)
	}
	if _, ok := s.Pod("0123456789abcdef"); !ok || len(f.stored) != 1 {
		t.Errorf("it is not there, %d are stored", len(f.stored))
	}
}
