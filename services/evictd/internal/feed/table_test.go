package feed_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/bustest"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/evictd/internal/feed"
)

func container(name, image, memory, storage string) corev1.Container {
	c := corev1.Container{Name: name, Image: image, Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{}}}
	if memory != "" {
		c.Resources.Requests[corev1.ResourceMemory] = resource.MustParse(memory)
	}
	if storage != "" {
		c.Resources.Requests[corev1.ResourceEphemeralStorage] = resource.MustParse(storage)
	}
	return c
}

func record(t *testing.T, uid string, source podplanev1.Source, spec corev1.PodSpec) *podplanev1.PodRecord {
	t.Helper()
	data, err := json.Marshal(corev1.Pod{Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
	return &podplanev1.PodRecord{Node: "n", Uid: uid, Namespace: "default", Name: "web", Source: source, Pod: data}
}

func TestDecode(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	priority := int32(77)
	sidecar := container("sidecar", "side:1", "100", "")
	sidecar.RestartPolicy = &always
	spec := corev1.PodSpec{
		Priority:       &priority,
		InitContainers: []corev1.Container{container("first", "init:1", "150", ""), sidecar, container("second", "init:1", "500", "")},
		Containers:     []corev1.Container{container("app", "app:1", "200", "1Ki"), container("other", "app:2", "", "1Ki")},
		Overhead:       corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("7")},
		Volumes:        []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "data:1"}}}},
	}
	p, err := feed.Decode(record(t, "u", podplanev1.Source_SOURCE_API, spec))
	if err != nil {
		t.Fatal(err)
	}
	// The second init container needs 500 beside the sidecar's 100: more than 300 while the pod runs.
	if p.MemoryRequest != 607 || p.StorageRequest != 2048 || p.Priority != 77 || p.Static || p.UID != "u" || p.Name != "web" {
		t.Errorf("%+v", p)
	}
	if want := []string{"init:1", "side:1", "init:1", "app:1", "app:2", "data:1"}; !slices.Equal(p.Images, want) {
		t.Errorf("images %v", p.Images)
	}
	if len(p.Containers) != 5 || p.Containers[3].Name != "app" || p.Containers[3].MemoryRequest != 200 || p.Containers[3].StorageRequest != 1024 {
		t.Errorf("containers %+v", p.Containers)
	}
	spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1000")}}
	for source, static := range map[podplanev1.Source]bool{podplanev1.Source_SOURCE_FILE: true, podplanev1.Source_SOURCE_HTTP: true, podplanev1.Source_SOURCE_API: false} {
		p, err := feed.Decode(record(t, "u", source, spec))
		if err != nil || p.Static != static || p.MemoryRequest != 1007 {
			t.Errorf("%s: %+v, %v", source, p, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"spec":{"containers":[{"name":"a","resources":{"requests":{"memory":"1Gi"}}}]}}`))
	f.Add([]byte(`{"spec":{"containers":[{"resources":{"requests":{"memory":"-9e99"}}}]}}`))
	f.Fuzz(func(t *testing.T, manifest []byte) {
		p, _ := feed.Decode(&podplanev1.PodRecord{Uid: "u", Pod: manifest})
		if p.UID != "u" {
			t.Fatal("lost its identity")
		}
		for _, c := range p.Containers {
			if c.MemoryRequest < 0 {
				t.Fatalf("negative request of %s", c.Name)
			}
		}
	})
}

// TestTable follows a pod's records on the bus.
func TestTable(t *testing.T) {
	b := bustest.New(t)
	syncd, evictd := b.Connect(bus.ServiceSyncd, "n"), b.Connect(bus.ServiceEvictd, "n")
	pods, err := bus.Open(t.Context(), syncd, bus.Pods)
	if err != nil {
		t.Fatal(err)
	}
	status, err := bus.Open(t.Context(), syncd, bus.Status)
	if err != nil {
		t.Fatal(err)
	}
	readPods, err := bus.Open(t.Context(), evictd, bus.Pods)
	if err != nil {
		t.Fatal(err)
	}
	readStatus, err := bus.Open(t.Context(), evictd, bus.Status)
	if err != nil {
		t.Fatal(err)
	}
	changed := make(chan struct{}, 1)
	table := feed.NewTable(slog.New(slog.DiscardHandler), func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	if table.Synced() {
		t.Error("synced before it has seen anything")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- table.Run(ctx, "n", readPods, readStatus) }()
	await := func(what string, ok func() bool) {
		t.Helper()
		timeout := time.After(20 * time.Second)
		for !ok() {
			select {
			case <-changed:
			case <-timeout:
				t.Fatalf("never: %s", what)
			}
		}
	}
	await("synced", table.Synced)
	put := func(key string, r *podplanev1.PodRecord) {
		t.Helper()
		if _, err := pods.Put(t.Context(), key, r); err != nil {
			t.Fatal(err)
		}
	}
	put(bus.PodKey("n", "u1"), record(t, "u1", podplanev1.Source_SOURCE_API, corev1.PodSpec{Containers: []corev1.Container{container("a", "b", "5", "")}}))
	put(bus.PodKey("n", "u2"), &podplanev1.PodRecord{Uid: "u2", Pod: []byte("not JSON")})
	put(bus.PodKey("other", "u3"), record(t, "u3", podplanev1.Source_SOURCE_API, corev1.PodSpec{}))
	await("both pods", func() bool { return len(table.List()) == 2 })
	if p, ok := table.Get("u1"); !ok || p.MemoryRequest != 5 || p.Ended {
		t.Errorf("%+v", p)
	}
	for phase, ended := range map[podplanev1.WorkerPhase]bool{
		podplanev1.WorkerPhase_WORKER_PHASE_TERMINATING: false, podplanev1.WorkerPhase_WORKER_PHASE_TERMINATED: true,
	} {
		if _, err := status.Put(t.Context(), bus.PodKey("n", "u1"), &podplanev1.StatusRecord{Phase: phase}); err != nil {
			t.Fatal(err)
		}
		await(phase.String(), func() bool { p, _ := table.Get("u1"); return p.Phase == phase && p.Ended == ended })
	}
	volumes, err := bus.Open(t.Context(), b.Connect(bus.ServiceVolumed, "n"), bus.Volumes)
	if err != nil {
		t.Fatal(err)
	}
	readVolumes, err := bus.Open(t.Context(), evictd, bus.Volumes)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := status.Put(t.Context(), bus.PodKey("n", "u1"), &podplanev1.StatusRecord{Phase: podplanev1.WorkerPhase_WORKER_PHASE_TERMINATED}); err != nil {
		t.Fatal(err)
	}
	await("a pod without volumes is clean when it has ended", func() bool { p, _ := table.Get("u1"); return p.Clean })
	followed := make(chan error, 1)
	go func() { followed <- table.RunVolumes(ctx, "n", readVolumes) }()
	for _, phase := range []podplanev1.VolumePhase{podplanev1.VolumePhase_VOLUME_PHASE_READY, podplanev1.VolumePhase_VOLUME_PHASE_GONE} {
		if _, err := volumes.Put(t.Context(), bus.PodKey("n", "u1"), &podplanev1.VolumesRecord{Phase: phase}); err != nil {
			t.Fatal(err)
		}
		clean := phase == podplanev1.VolumePhase_VOLUME_PHASE_GONE
		await(phase.String(), func() bool { p, _ := table.Get("u1"); return p.Clean == clean })
	}
	if err := pods.Delete(t.Context(), bus.PodKey("n", "u1")); err != nil {
		t.Fatal(err)
	}
	await("the pod is gone", func() bool { _, ok := table.Get("u1"); return !ok })
	cancel()
	for _, ended := range []chan error{done, followed} {
		if err := <-ended; !fault.Is(err, fault.Canceled) {
			t.Errorf("ended with %v", err)
		}
	}
}
