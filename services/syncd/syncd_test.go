package syncd_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/bustest"
	"github.com/podplane/podplane/internal/daemon"
	"github.com/podplane/podplane/internal/testkit"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// host is a node with a real containerd, a bus, and syncd on it.
type host struct {
	t      testing.TB
	node   *testkit.Node
	bus    *bustest.Bus
	pods   *bus.Bucket[*podplanev1.PodRecord]
	status *bus.Bucket[*podplanev1.StatusRecord]
	name   string
}

func newHost(t testing.TB) *host {
	t.Helper()
	h := &host{t: t, node: testkit.Containerd(t), bus: bustest.New(t), name: "n1"}
	conn := h.bus.Connect("", h.name)
	var err error
	if h.pods, err = bus.Open(t.Context(), conn, bus.Pods); err != nil {
		t.Fatal(err)
	}
	if h.status, err = bus.Open(t.Context(), conn, bus.Status); err != nil {
		t.Fatal(err)
	}
	return h
}

// start runs syncd until stop is called.
func (h *host) start() (stop func()) {
	h.t.Helper()
	cfg := syncd.DefaultConfig()
	cfg.Node, cfg.CRIEndpoint, cfg.CgroupRoot = h.name, h.node.Endpoint, h.node.CgroupParent
	cfg.Root, cfg.RunDir, cfg.PodLogDir = filepath.Join(h.node.Dir, "root"), filepath.Join(h.node.Dir, "run"), filepath.Join(h.node.Dir, "logs")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- daemon.Run[syncd.Config](ctx, daemon.Service[syncd.Config]{Name: bus.ServiceSyncd, Defaults: syncd.DefaultConfig, Run: syncd.Run}, cfg,
			daemon.Options{InProcess: h.bus.Server(), Log: slog.New(slog.DiscardHandler)})
	}()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			h.t.Errorf("syncd ended: %v", err)
		}
	}
}

func newPod(name string) *v1.Pod {
	grace := int64(5)
	return &v1.Pod{
		TypeMeta:   metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), Generation: 1, CreationTimestamp: metav1.Now()},
		Spec: v1.PodSpec{
			RestartPolicy: v1.RestartPolicyAlways, TerminationGracePeriodSeconds: &grace, DNSPolicy: v1.DNSDefault,
			Containers: []v1.Container{{
				Name: "main", Image: testkit.Busybox, ImagePullPolicy: v1.PullIfNotPresent,
				Command: []string{"/bin/sh", "-c", "trap 'exit 0' TERM; echo up; sleep 1000 & wait"}, TerminationMessagePath: "/dev/termination-log",
			}},
		},
	}
}

func (h *host) wish(p *v1.Pod) {
	h.t.Helper()
	raw, err := json.Marshal(p)
	if err != nil {
		h.t.Fatal(err)
	}
	uid := string(p.UID)
	rec := &podplanev1.PodRecord{Schema: 1, Node: h.name, Uid: uid, Namespace: p.Namespace, Name: p.Name, Pod: raw, StoredAt: timestamppb.Now()}
	if _, err := h.pods.Put(h.t.Context(), bus.PodKey(h.name, uid), rec); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) remove(p *v1.Pod) {
	c := p.DeepCopy()
	end := metav1.NewTime(time.Now().Add(time.Duration(*p.Spec.TerminationGracePeriodSeconds) * time.Second))
	c.DeletionTimestamp, c.DeletionGracePeriodSeconds = &end, p.Spec.TerminationGracePeriodSeconds
	h.wish(c)
}

func (h *host) statusOf(uid string) (*podplanev1.StatusRecord, v1.PodStatus, error) {
	var s v1.PodStatus
	e, err := h.status.Get(h.t.Context(), bus.PodKey(h.name, uid))
	if err != nil {
		return nil, s, err
	}
	return e.Value, s, json.Unmarshal(e.Value.GetStatus(), &s)
}

func (h *host) ready(uid string) error {
	rec, s, err := h.statusOf(uid)
	if err != nil {
		return err
	}
	for _, c := range s.Conditions {
		if c.Type == v1.PodReady && c.Status == v1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("not ready: %s %+v %v", s.Phase, s.ContainerStatuses, rec.GetWaiting())
}

func (h *host) waitReady(uids ...string) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), time.Minute)
	defer cancel()
	for _, uid := range uids {
		testkit.Eventually(ctx, h.t, "pod "+uid+" is ready", func(context.Context) error { return h.ready(uid) })
	}
}

func (h *host) waitGone(uids ...string) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), time.Minute)
	defer cancel()
	for _, uid := range uids {
		testkit.Eventually(ctx, h.t, "pod "+uid+" is gone", func(ctx context.Context) error {
			if e, err := h.pods.Get(ctx, bus.PodKey(h.name, uid)); err == nil {
				rec, s, _ := h.statusOf(uid)
				return fmt.Errorf("still at revision %d: %s %v %s", e.Revision, rec.GetPhase(), rec.GetWaiting(), s.Phase)
			}
			return nil
		})
	}
}

func TestPodLivesOnContainerd(t *testing.T) {
	h := newHost(t)
	stop := h.start()
	p := newPod("life")
	h.wish(p)
	h.waitReady("uid-life")
	_, s, err := h.statusOf("uid-life")
	if err != nil {
		t.Fatal(err)
	}
	if s.Phase != v1.PodRunning || s.PodIP == "" || len(s.ContainerStatuses) != 1 || s.ContainerStatuses[0].State.Running == nil {
		t.Fatalf("status: %+v", s)
	}
	id := s.ContainerStatuses[0].ContainerID

	// Another process adopts what runs.
	stop()
	stop = h.start()
	defer stop()
	h.waitReady("uid-life")
	runtimePod, err := h.node.Client(t).PodStatus(t.Context(), "uid-life")
	if err != nil {
		t.Fatal(err)
	}
	if len(runtimePod.Containers) != 1 || "containerd://"+runtimePod.Containers[0].ID != id {
		t.Errorf("not adopted: %+v", runtimePod.Containers)
	}

	h.remove(p)
	h.waitGone("uid-life")
	runtimePod, err = h.node.Client(t).PodStatus(t.Context(), "uid-life")
	if err != nil || !runtimePod.Empty() {
		t.Errorf("left in the runtime: %+v, %v", runtimePod, err)
	}
	for _, pattern := range []string{"root/pods/*", "logs/*"} {
		if left, err := filepath.Glob(filepath.Join(h.node.Dir, pattern)); err != nil || len(left) > 0 {
			t.Errorf("left on disk: %v, %v", left, err)
		}
	}
	if _, _, err := h.statusOf("uid-life"); err == nil {
		t.Error("the status record is still there")
	}
}
