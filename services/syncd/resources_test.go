package syncd

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podplane/podplane/internal/events"
	"github.com/podplane/podplane/services/syncd/internal/runtime"
)

func TestResourcesAreChecked(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Resources)
		want   string // "": it is valid
	}{
		"defaults":              {func(*Resources) {}, ""},
		"all":                   {func(r *Resources) { *r = everything() }, ""},
		"no such resource":      {func(r *Resources) { r.SystemReserved = "gpu=1" }, "systemReserved"},
		"no amount":             {func(r *Resources) { r.KubeReserved = "cpu" }, "kubeReserved"},
		"negative":              {func(r *Resources) { r.KubeReserved = "cpu=-1" }, "negative"},
		"twice":                 {func(r *Resources) { r.KubeReserved = "cpu=1,cpu=2" }, "twice"},
		"factor":                {func(r *Resources) { r.MemoryThrottlingFactor = 1.1 }, "memoryThrottlingFactor"},
		"policy":                {func(r *Resources) { r.MemoryReservation = "All" }, "memoryReservationPolicy"},
		"swap":                  {func(r *Resources) { r.Swap = "UnlimitedSwap" }, "memorySwapBehavior"},
		"kernel":                {func(r *Resources) { r.KernelSettings = "break" }, "kernelSettings"},
		"unknown part":          {func(r *Resources) { r.Enforce = []string{"everything"} }, "enforceNodeAllocatable"},
		"none and some":         {func(r *Resources) { r.Enforce = []string{"none", "pods"} }, "alone"},
		"none":                  {func(r *Resources) { r.Enforce = []string{"none"} }, ""},
		"without a cgroup":      {func(r *Resources) { r.Enforce = []string{"system-reserved"} }, "systemReservedCgroup"},
		"CPU without a cgroup":  {func(r *Resources) { r.Enforce = []string{"kube-reserved-compressible"} }, "kubeReservedCgroup"},
		"whole and part of one": {func(r *Resources) { *r = everything(); r.Enforce = append(r.Enforce, "kube-reserved-compressible") }, "exclude each other"},
	} {
		r := DefaultResources()
		c.change(&r)
		err := r.Validate(nil).ToAggregate()
		if (err == nil) != (c.want == "") || (err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func everything() Resources {
	r := DefaultResources()
	r.SystemReserved, r.KubeReserved = "cpu=500m,memory=256Mi,pid=1000,ephemeral-storage=1Gi", "cpu=250m,memory=128Mi"
	r.SystemReservedCgroup, r.KubeReservedCgroup = "/system", "/kube"
	r.Enforce = []string{"pods", "system-reserved-compressible", "kube-reserved"}
	return r
}

func TestReserved(t *testing.T) {
	r := everything()
	reserved := r.reserved()
	for name, want := range map[v1.ResourceName]string{"cpu": "750m", "memory": "384Mi", "pid": "1k", "ephemeral-storage": "1Gi"} {
		if q := reserved[name]; q.Cmp(resource.MustParse(want)) != 0 {
			t.Errorf("%s of %s is reserved, want %s", q.String(), name, want)
		}
	}
	machine := v1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("1Gi"), "pid": resource.MustParse("32k")}
	if err := checkReserved(reserved, machine); err != nil {
		t.Error(err)
	}
	machine["memory"] = resource.MustParse("384Mi")
	if err := checkReserved(reserved, machine); err == nil || !strings.Contains(err.Error(), "memory") {
		t.Errorf("all memory is reserved: %v", err)
	}
	bounds := r.bounds()
	if len(bounds) != 2 || bounds[0].Cgroup != "/system" || len(bounds[0].Limits) != 1 || bounds[1].Cgroup != "/kube" || len(bounds[1].Limits) != 2 {
		t.Errorf("cgroups that are limited: %+v", bounds)
	}
	if q := bounds[0].Limits[v1.ResourceCPU]; q.String() != "500m" {
		t.Errorf("the system gets %s CPU", q.String())
	}
}

// said collects the reasons of Events.
type said []string

func (s *said) Event(ref events.ObjectRef, eventType, reason, _ string, _ ...any) {
	*s = append(*s, ref.Name+" "+eventType+" "+reason)
}

func (s *said) EventContext(_ context.Context, ref events.ObjectRef, eventType, reason, format string, args ...any) {
	s.Event(ref, eventType, reason, format, args...)
}

func TestEnforce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var heard said
		var tries []time.Time
		r := everything()
		err := r.enforce(t.Context(), func(_ context.Context, pods bool, others []runtime.Bound) error {
			if !pods || len(others) != 2 {
				t.Errorf("pods: %t, others: %+v", pods, others)
			}
			if tries = append(tries, time.Now()); len(tries) < 9 {
				return errors.New("the runtime is away")
			}
			return nil
		}, "n1", &heard)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
			if got := tries[i+1].Sub(tries[i]); got != want*time.Second {
				t.Errorf("try %d is %s after the one before, want %d s", i+2, got, want)
			}
		}
		if len(heard) != 9 || heard[0] != "n1 Warning FailedNodeAllocatableEnforcement" || heard[8] != "n1 Normal NodeAllocatableEnforced" {
			t.Errorf("Events: %q", heard)
		}
		// It ends with its context, and does nothing where nothing is to be enforced.
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		failing := func(context.Context, bool, []runtime.Bound) error { return errors.New("never") }
		if err := r.enforce(ctx, failing, "n1", &heard); err != nil || ctx.Err() == nil {
			t.Errorf("ended with %v, %v", err, ctx.Err())
		}
		heard, r.Enforce = nil, []string{"none"}
		if err := r.enforce(t.Context(), failing, "n1", &heard); err != nil || len(heard) > 0 {
			t.Errorf("none: %v, %q", err, heard)
		}
	})
}
