package runtime

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

func memoryPod(request, limit string) *v1.Pod {
	p := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c"}}}}
	p.UID = "u"
	c := &p.Spec.Containers[0]
	if request != "" {
		c.Resources.Requests = v1.ResourceList{v1.ResourceMemory: resource.MustParse(request), v1.ResourceCPU: resource.MustParse("1")}
	}
	if limit != "" {
		c.Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse(limit), v1.ResourceCPU: resource.MustParse("1")}
	}
	return p
}

func TestUnified(t *testing.T) {
	qos := Memory{Throttle: 0.9, Reserve: true}
	swap := Memory{Swap: true, SwapBytes: 1 << 30}
	for _, c := range []struct {
		name           string
		memory         Memory
		request, limit string
		priority       *int32
		want           map[string]string
	}{
		{"defaults", Memory{}, "64Mi", "128Mi", nil, map[string]string{fileOOMGroup: "1", fileSwapMax: "0"}},
		{"one by one", Memory{OneByOne: true}, "", "", nil, map[string]string{fileOOMGroup: "0", fileSwapMax: "0"}},
		{"guaranteed", qos, "64Mi", "64Mi", nil, map[string]string{fileMemoryHigh: "max", fileMemoryMin: "67108864", fileMemoryLow: "0"}},
		// 100Mi + 0.9 * 100Mi
		{"burstable", qos, "100Mi", "200Mi", nil, map[string]string{fileMemoryHigh: "199229440", fileMemoryMin: "0", fileMemoryLow: "104857600"}},
		// 1Gi + 0.9 * (4Gi - 1Gi), in whole pages
		{"without a limit", qos, "1Gi", "", nil, map[string]string{fileMemoryHigh: "3972841472", fileMemoryMin: "0", fileMemoryLow: "1073741824"}},
		// 0.9 * 4Gi
		{"best effort", qos, "", "", nil, map[string]string{fileMemoryHigh: "3865468928", fileMemoryMin: "0", fileMemoryLow: "0"}},
		// 1Gi of 8Gi
		{"swap", swap, "1Gi", "2Gi", nil, map[string]string{fileSwapMax: "134217728"}},
		{"swap without limit", swap, "1Gi", "", nil, map[string]string{fileSwapMax: "134217728"}},
		{"swap, guaranteed", swap, "1Gi", "1Gi", nil, map[string]string{fileSwapMax: "0"}},
		{"swap, best effort", swap, "", "", nil, map[string]string{fileSwapMax: "0"}},
		{"swap, critical", swap, "1Gi", "2Gi", ptr.To[int32](criticalPriority), map[string]string{fileSwapMax: "0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := Cgroups{Mount: t.TempDir(), Unified: true}
			e := New(Config{
				Capacity: v1.ResourceList{v1.ResourceMemory: resource.MustParse("8Gi")}, Allocatable: v1.ResourceList{v1.ResourceMemory: resource.MustParse("4Gi")},
				Memory: c.memory, Cgroups: g,
			}, nil, nil, nil, nil)
			p := memoryPod(c.request, c.limit)
			p.Spec.Priority = c.priority
			without := e.unified(p, &p.Spec.Containers[0].Resources, g)
			if v, ok := without[fileSwapMax]; ok {
				t.Errorf("%s is %s on a kernel that has no such file", fileSwapMax, v)
			}
			dir := filepath.Join(g.Mount, g.tree().Dir(g.Parent(p)))
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, fileSwapMax), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			got := e.unified(p, &p.Spec.Containers[0].Resources, g)
			for file, value := range c.want {
				if got[file] != value {
					t.Errorf("%s is %q, want %q", file, got[file], value)
				}
			}
			for _, file := range []string{fileMemoryHigh, fileMemoryMin, fileMemoryLow} {
				if _, ok := c.want[file]; !ok && got[file] != "" {
					t.Errorf("%s is %q, want it to be left alone", file, got[file])
				}
			}
		})
	}
}

// TestHigh: whatever is asked for, a container is never slowed down below its request, nor above what it may have.
func TestHigh(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	page := int64(os.Getpagesize())
	for range 100_000 {
		m := Memory{Throttle: r.Float64()}
		allocatable := r.Int64N(1 << 40)
		request, limit := r.Int64N(1<<38), int64(0)
		if r.IntN(2) == 0 {
			limit = request + r.Int64N(1<<38)
		}
		most := limit
		if most == 0 {
			most = allocatable
		}
		high := m.high(v1.PodQOSBurstable, request, limit, allocatable)
		if high != 0 && (high%page != 0 || high < request-page || high > most) {
			t.Fatalf("factor %v, request %d, limit %d, allocatable %d: %d", m.Throttle, request, limit, allocatable, high)
		}
		if high == 0 && m.Throttle > 0 && most-request > 2*page && float64(most-request)*m.Throttle > float64(2*page) {
			t.Fatalf("factor %v, request %d, limit %d, allocatable %d: none", m.Throttle, request, limit, allocatable)
		}
	}
}
