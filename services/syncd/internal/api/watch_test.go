package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/watchcache"
)

func TestWatchFromTheStart(t *testing.T) {
	s := start(t, watchcache.Limits{})
	s.mustCreate("a")
	s.mustCreate("b")
	w := s.watch(&podplanev1.ListRequest{Namespace: "default", AllowWatchBookmarks: true})
	w.expect("ADDED", "a")
	w.expect("ADDED", "b")
	if mark := w.expect("BOOKMARK", ""); mark.ResourceVersion == "" || mark.Kind != "Pod" {
		t.Errorf("bookmark %+v", mark)
	}
	s.mustCreate("c")
	w.expect("ADDED", "c")
	if _, err := s.delete(&podplanev1.DeleteRequest{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	gone := w.expect("MODIFIED", "a")
	if err := s.store.Remove(t.Context(), string(gone.UID)); err != nil {
		t.Fatal(err)
	}
	last := w.expect("DELETED", "a")
	if last.ResourceVersion <= gone.ResourceVersion {
		t.Errorf("deleted at %s, marked at %s", last.ResourceVersion, gone.ResourceVersion)
	}
}

func TestWatchGoesOnFromAList(t *testing.T) {
	s := start(t, watchcache.Limits{})
	s.mustCreate("a")
	list, err := s.list(&podplanev1.ListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	b := s.mustCreate("b")
	w := s.watch(&podplanev1.ListRequest{ResourceVersion: list.ResourceVersion})
	w.expect("ADDED", "b")
	again := s.watch(&podplanev1.ListRequest{ResourceVersion: b.ResourceVersion}).standing()
	s.mustCreate("c")
	w.expect("ADDED", "c")
	again.expect("ADDED", "c")
}

func TestWatchSeesThroughItsSelectors(t *testing.T) {
	s := start(t, watchcache.Limits{})
	pod := s.mustCreate("a")
	s.mustCreate("b")
	w := s.watch(&podplanev1.ListRequest{FieldSelector: "status.phase=Running", LabelSelector: "app=a"}).standing()
	status := func(phase string, rev uint64) {
		s.store.ApplyStatus(&podplanev1.StatusRecord{Node: node, Uid: string(pod.UID), Status: []byte(`{"phase":"` + phase + `"}`)}, rev)
	}
	status("Running", 1)
	w.expect("ADDED", "a")
	status("Succeeded", 2)
	w.expect("DELETED", "a")
	status("Running", 1) // an older revision counts for nothing
	status("Running", 3)
	if again := w.expect("ADDED", "a"); again.Status.Phase != "Running" {
		t.Errorf("got %+v", again.Status)
	}
}

func TestWatchFromAForgottenVersion(t *testing.T) {
	s := start(t, watchcache.Limits{History: 2})
	first := s.mustCreate("a")
	for i := range 3 {
		s.mustCreate(fmt.Sprint("b", i))
	}
	for _, from := range []string{first.ResourceVersion, "1", "9999999999999999999"} {
		if _, err := s.watch(&podplanev1.ListRequest{ResourceVersion: from}).recv(); !fault.Is(err, fault.Expired) {
			t.Errorf("from %s: got %v, want Expired", from, err)
		}
	}
	if _, err := s.watch(&podplanev1.ListRequest{ResourceVersion: "x"}).recv(); !fault.Is(err, fault.BadRequest) {
		t.Errorf("got %v, want BadRequest", err)
	}
}

func TestWatchEndsInTime(t *testing.T) {
	s := start(t, watchcache.Limits{})
	w := s.watch(&podplanev1.ListRequest{TimeoutSeconds: 1})
	if _, err := w.recv(); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the end of the stream", err)
	}
}

func TestSlowWatcherIsEnded(t *testing.T) {
	s := start(t, watchcache.Limits{Queue: 4})
	pod := s.mustCreate("a")
	w := s.watch(&podplanev1.ListRequest{}).standing()
	w.expect("ADDED", "a")
	// More than the stream and the queue can hold while nobody reads.
	large := `{"phase":"Running","message":"` + strings.Repeat("x", 64<<10) + `"}`
	for rev := range uint64(400) {
		s.store.ApplyStatus(&podplanev1.StatusRecord{Node: node, Uid: string(pod.UID), Status: []byte(large)}, rev+1)
	}
	for n := 0; ; n++ {
		e, err := w.recv()
		if err != nil {
			t.Fatalf("after %d events: %v", n, err)
		}
		if e.Type == "MODIFIED" {
			continue
		}
		var status metav1.Status
		if err := json.Unmarshal(e.Object, &status); err != nil || e.Type != "ERROR" || status.Code != 410 || status.Reason != metav1.StatusReasonExpired {
			t.Fatalf("got %s %s", e.Type, e.Object)
		}
		break
	}
	if _, err := w.recv(); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the end of the stream", err)
	}
	if _, err := s.get("a"); err != nil {
		t.Errorf("others were held up: %v", err)
	}
}

func TestListInPagesAndPieces(t *testing.T) {
	s := start(t, watchcache.Limits{})
	for _, name := range []string{"c", "a", "b"} {
		s.mustCreate(name, `"containers":[{"name":"a","image":"example/a:1","env":[{"name":"BIG","value":"`+strings.Repeat("y", 300<<10)+`"}]}]`)
	}
	var names []string
	req := &podplanev1.ListRequest{Limit: 2}
	for {
		l, err := s.list(req)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range l.Items {
			names = append(names, p.Name)
		}
		if l.Continue == "" {
			break
		}
		if l.RemainingItemCount == nil || *l.RemainingItemCount != 1 {
			t.Errorf("remaining %v", l.RemainingItemCount)
		}
		req.Continue = l.Continue
	}
	if got := strings.Join(names, " "); got != "a b c" {
		t.Errorf("got %s", got)
	}
	for name, want := range map[string]int{node: 3, "other": 0} {
		if l, err := s.list(&podplanev1.ListRequest{Node: name}); err != nil || len(l.Items) != want {
			t.Errorf("on node %s: got %d pods, %v", name, len(l.Items), err)
		}
	}
	stream, err := s.pods.ListPods(t.Context(), &podplanev1.ListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; ; n++ {
		b, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			if n != 2 {
				t.Errorf("%d messages for 900 KiB", n)
			}
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(b.GetData()) > 512<<10 {
			t.Errorf("a message of %d bytes", len(b.GetData()))
		}
	}
	for _, bad := range []*podplanev1.ListRequest{
		{LabelSelector: "a in b"}, {FieldSelector: "spec.hostNetwork=true"}, {Continue: "!"}, {Continue: "e30x"}, {ResourceVersion: "-1"},
	} {
		if _, err := s.list(bad); !fault.Is(err, fault.BadRequest) {
			t.Errorf("%v: got %v, want BadRequest", bad, err)
		}
	}
}

func TestBusAway(t *testing.T) {
	s := start(t, watchcache.Limits{})
	kept := s.mustCreate("kept")
	if err := s.bus.Server().Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	_, err := s.create("lost")
	if took := time.Since(began); !fault.Is(err, fault.Unavailable) || fault.RetryAfter(err) != time.Second || took > 3*time.Second {
		t.Errorf("create: got %v after %v, retry after %v", err, took, fault.RetryAfter(err))
	}
	if _, err := s.delete(&podplanev1.DeleteRequest{Name: "kept"}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("delete: got %v", err)
	}
	got, err := s.get("kept")
	if err != nil || got.DeletionTimestamp != nil || got.ResourceVersion != kept.ResourceVersion {
		t.Errorf("a read: got %+v, %v", got, err)
	}
	if _, err := s.get("lost"); !fault.Is(err, fault.NotFound) {
		t.Errorf("what was not stored is shown: %v", err)
	}
}
