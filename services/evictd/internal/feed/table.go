// Package feed keeps what evictd needs to know of the node's pods, from the buckets of desired pods, of their status and of
// their volumes. It decides nothing.
//
// The table follows the bus: entries come and go with the records, in the order of each bucket, and stay as they are while
// the bus is away. Of a pod's manifest only numbers and names are kept, some hundred bytes each; a record that can't be
// decoded is logged and counts as a pod without requests.
package feed

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/telemetry"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/evictd/internal/policy"
)

// Pod is a desired pod and how far it is.
type Pod struct {
	// Pod has identity, priority and requests, no usage. Containers are in the manifest's order.
	policy.Pod
	Phase podplanev1.WorkerPhase
	// Clean says that the pod has ended and its volumes are torn down: what it took is free again.
	Clean  bool
	Images []string
	Trace  *podplanev1.TraceContext
}

// Table is the set of the node's pods. Its methods may be called from any goroutine.
type Table struct {
	log     *slog.Logger
	changed func()

	mu     sync.Mutex
	pods   map[string]Pod
	phases map[string]podplanev1.WorkerPhase
	// mounted has the pods whose volumes are not torn down.
	mounted map[string]bool
	synced  int
}

// NewTable makes an empty table; changed is called after each change, without a lock.
func NewTable(log *slog.Logger, changed func()) *Table {
	return &Table{
		log: log, changed: changed, pods: make(map[string]Pod), phases: make(map[string]podplanev1.WorkerPhase), mounted: make(map[string]bool),
	}
}

// Run follows the buckets of pods and of their status until the context ends.
func (t *Table) Run(ctx context.Context, node string, pods *bus.Bucket[*podplanev1.PodRecord], status *bus.Bucket[*podplanev1.StatusRecord]) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		cancel(status.Watch(ctx, bus.NodePattern(node), bus.Handler[*podplanev1.StatusRecord]{Apply: t.applyStatus, Synced: t.sync}))
	}()
	err := pods.Watch(ctx, bus.NodePattern(node), bus.Handler[*podplanev1.PodRecord]{Apply: t.applyPod, Synced: t.sync})
	cancel(err)
	<-done
	return context.Cause(ctx)
}

// RunVolumes follows the bucket of volumes until the context ends. Without it, as while volumed has never run, a pod that has
// ended counts as clean.
func (t *Table) RunVolumes(ctx context.Context, node string, volumes *bus.Bucket[*podplanev1.VolumesRecord]) error {
	return volumes.Watch(ctx, bus.NodePattern(node), bus.Handler[*podplanev1.VolumesRecord]{Apply: t.applyVolumes})
}

func (t *Table) applyVolumes(e bus.Entry[*podplanev1.VolumesRecord]) {
	uid, mounted := uidOf(e.Key), !e.Deleted && e.Value.GetPhase() != podplanev1.VolumePhase_VOLUME_PHASE_GONE
	t.mu.Lock()
	changed := t.mounted[uid] != mounted
	if mounted {
		t.mounted[uid] = true
	} else {
		delete(t.mounted, uid)
	}
	t.mu.Unlock()
	if changed {
		t.changed()
	}
}

func (t *Table) sync() {
	t.mu.Lock()
	t.synced++
	t.mu.Unlock()
	t.changed()
}

// Synced says whether the present state of pods and their status has been seen.
func (t *Table) Synced() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.synced >= 2
}

// List returns the pods.
func (t *Table) List() []Pod {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]Pod, 0, len(t.pods))
	for uid := range t.pods {
		list = append(list, t.get(uid))
	}
	return list
}

// Get returns one pod.
func (t *Table) Get(uid string) (Pod, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.pods[uid]; !ok {
		return Pod{}, false
	}
	return t.get(uid), true
}

func (t *Table) get(uid string) Pod {
	p := t.pods[uid]
	p.Phase = t.phases[uid]
	p.Ended = p.Phase == podplanev1.WorkerPhase_WORKER_PHASE_TERMINATED
	p.Clean = p.Ended && !t.mounted[uid]
	return p
}

func uidOf(key string) string {
	parts, err := bus.SplitKey(key)
	if err != nil || len(parts) != 2 {
		return ""
	}
	return parts[1]
}

func (t *Table) applyPod(e bus.Entry[*podplanev1.PodRecord]) {
	defer t.changed()
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.Deleted {
		delete(t.pods, uidOf(e.Key))
		return
	}
	p, err := Decode(e.Value)
	if err != nil {
		t.log.WarnContext(telemetry.ContextWithRecord(context.Background(), e.Value), "can't decode a pod", "error", err)
	}
	t.pods[uidOf(e.Key)] = p
}

func (t *Table) applyStatus(e bus.Entry[*podplanev1.StatusRecord]) {
	uid := uidOf(e.Key)
	t.mu.Lock()
	old := t.phases[uid]
	phase := e.Value.GetPhase()
	if e.Deleted {
		delete(t.phases, uid)
	} else {
		t.phases[uid] = phase
	}
	t.mu.Unlock()
	if e.Deleted || phase != old {
		t.changed()
	}
}

// Decode takes from a record what matters here. With an error the pod has its identity only.
func Decode(r *podplanev1.PodRecord) (Pod, error) {
	p := Pod{Trace: r.GetTrace(), Pod: policy.Pod{
		UID: r.GetUid(), Namespace: r.GetNamespace(), Name: r.GetName(),
		Static: r.GetSource() == podplanev1.Source_SOURCE_FILE || r.GetSource() == podplanev1.Source_SOURCE_HTTP,
	}}
	var manifest struct {
		Spec corev1.PodSpec `json:"spec"`
	}
	if err := json.Unmarshal(r.GetPod(), &manifest); err != nil {
		return p, err
	}
	spec := &manifest.Spec
	if spec.Priority != nil {
		p.Priority = *spec.Priority
	}
	p.MemoryRequest, p.StorageRequest = podRequest(spec, corev1.ResourceMemory), podRequest(spec, corev1.ResourceEphemeralStorage)
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			c := &list[i]
			p.Images = append(p.Images, c.Image)
			p.Containers = append(p.Containers, policy.ContainerUsage{
				Name: c.Name, MemoryRequest: request(c.Resources.Requests, corev1.ResourceMemory),
				StorageRequest: request(c.Resources.Requests, corev1.ResourceEphemeralStorage),
			})
		}
	}
	for i := range spec.Volumes {
		if image := spec.Volumes[i].Image; image != nil {
			p.Images = append(p.Images, image.Reference)
		}
	}
	return p, nil
}

func request(list corev1.ResourceList, name corev1.ResourceName) int64 {
	q, ok := list[name]
	if !ok {
		return 0
	}
	return saturated(&q)
}

func saturated(q *resource.Quantity) int64 { return max(0, q.Value()) }

// podRequest is what Kubernetes counts as the pod's request: its own when it has one, else that of the containers that
// run side by side, or more when an init container needs more beside the sidecars before it; and the overhead.
func podRequest(spec *corev1.PodSpec, name corev1.ResourceName) int64 {
	var running, sidecars, largestInit int64
	for i := range spec.Containers {
		running += request(spec.Containers[i].Resources.Requests, name)
	}
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		r := request(c.Resources.Requests, name)
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			sidecars += r
			r = 0
		}
		largestInit = max(largestInit, sidecars+r)
	}
	total := max(running+sidecars, largestInit)
	if spec.Resources != nil {
		if _, ok := spec.Resources.Requests[name]; ok {
			total = request(spec.Resources.Requests, name)
		}
	}
	return total + request(spec.Overhead, name)
}
