package api_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/watchcache"
)

func TestPodLife(t *testing.T) {
	s := start(t, watchcache.Limits{})
	pod, err := s.create("web")
	if err != nil {
		t.Fatal(err)
	}
	if pod.UID == "" || pod.CreationTimestamp.IsZero() || pod.Generation != 1 || pod.Spec.NodeName != node || pod.Spec.RestartPolicy != v1.RestartPolicyAlways ||
		pod.Status.Phase != v1.PodPending || pod.ResourceVersion == "" || pod.Kind != "Pod" {
		t.Errorf("created %+v", pod)
	}
	if _, err := s.create("web"); !fault.Is(err, fault.AlreadyExists) {
		t.Errorf("a taken name: got %v", err)
	}
	s.store.ApplyStatus(&podplanev1.StatusRecord{
		Node: node, Uid: string(pod.UID), Phase: podplanev1.WorkerPhase_WORKER_PHASE_SYNCING, Status: []byte(`{"phase":"Running","podIP":"10.0.0.7","later":"kept"}`),
		Waiting: []*podplanev1.Waiting{{Step: "image", Resource: "example/a:1"}},
	}, 1)
	got, err := s.get("web")
	if err != nil {
		t.Fatal(err)
	}
	if got.Status.Phase != v1.PodRunning || got.ResourceVersion == pod.ResourceVersion {
		t.Errorf("with a status: %+v", got)
	}
	if a := got.Annotations; a["podplane.io/worker-phase"] != "Syncing" || !strings.Contains(a["podplane.io/waiting"], `"step":"image"`) {
		t.Errorf("annotations %v", a)
	}
	for _, field := range []string{"status.phase=Running", "status.podIP=10.0.0.7,metadata.name=web", "spec.nodeName!=other"} {
		if l, err := s.list(&podplanev1.ListRequest{FieldSelector: field, LabelSelector: "app in (web)"}); err != nil || len(l.Items) != 1 {
			t.Errorf("%s: got %v, %v", field, l, err)
		}
	}

	got.Spec.Containers[0].Image = "example/a:2"
	got.Labels["more"] = "x"
	changed, err := s.replace(got)
	if err != nil {
		t.Fatal(err)
	}
	if changed.Generation != 2 || changed.UID != pod.UID || changed.Spec.Containers[0].Image != "example/a:2" || changed.Labels["more"] != "x" {
		t.Errorf("replaced %+v", changed)
	}
	if c, ok := s.store.Pod(string(pod.UID)); !ok || c.Pod.Annotations != nil {
		t.Errorf("annotations of the answer were stored: %+v", c.Pod.Annotations)
	}
	if _, err := s.replace(got); !fault.Is(err, fault.Conflict) {
		t.Errorf("an old resourceVersion: got %v", err)
	}

	deleted, err := s.delete(&podplanev1.DeleteRequest{Name: "web"})
	if err != nil {
		t.Fatal(err)
	}
	if deleted.DeletionTimestamp == nil || *deleted.DeletionGracePeriodSeconds != 30 || deleted.Generation != 3 {
		t.Errorf("deleted %+v", deleted.ObjectMeta)
	}
	if longer, err := s.delete(&podplanev1.DeleteRequest{Name: "web", GracePeriodSeconds: proto.Int64(100)}); err != nil || *longer.DeletionGracePeriodSeconds != 30 {
		t.Errorf("a longer grace: got %v, %v", longer, err)
	}
	if now, err := s.delete(&podplanev1.DeleteRequest{Name: "web", GracePeriodSeconds: proto.Int64(0)}); err != nil || *now.DeletionGracePeriodSeconds != 0 || now.DeletionTimestamp.After(time.Now().Add(time.Second)) {
		t.Errorf("no grace: got %v, %v", now, err)
	}
	if _, err := s.create("web"); !fault.Is(err, fault.AlreadyExists) || !strings.Contains(err.Error(), "being deleted") {
		t.Errorf("the name of a terminating pod: got %v", err)
	}
	if err := s.store.Remove(t.Context(), string(pod.UID)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.get("web"); !fault.Is(err, fault.NotFound) {
		t.Errorf("after removal: got %v", err)
	}
	if again := s.mustCreate("web"); again.UID == pod.UID {
		t.Error("a new pod has the old one's UID")
	}
}
