package plan_test

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/services/syncd/internal/plan"
)

// mounts lets container "a" mount an image volume "data" of image "y".
func mounts(in *plan.Input) {
	in.Pod.Spec.Volumes = append(in.Pod.Spec.Volumes, v1.Volume{
		Name: "data", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "y", PullPolicy: v1.PullAlways}},
	})
	in.Pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "data"}}
}

func images(list map[string]plan.Image) change {
	return func(in *plan.Input) { in.Images = list }
}

func pulls(keys ...string) change {
	return func(in *plan.Input) {
		in.Busy.Images = map[string]bool{}
		for _, k := range keys {
			in.Busy.Images[k] = true
		}
	}
}

func failedPull(ref, reason string, secondsAgo, failures int) plan.Image {
	return plan.Image{
		Ref: ref, Failures: failures, Reason: reason, Message: "broken", FailedAt: at(secondsAgo), NotBefore: at(secondsAgo).Add(plan.ImageDelay(failures)),
	}
}

func TestImages(t *testing.T) {
	for name, test := range map[string]struct {
		in      plan.Input
		actions string
		waits   string // container, reason, message of each
		again   time.Duration
	}{
		"one of two containers asks": {
			in: situation(regular("b"), images(nil)), actions: "EnsureImage container=a", waits: `b ContainerCreating pulling image "x"`,
		},
		"the other waits meanwhile": {
			in: situation(regular("b"), images(nil), pulls("a")), waits: `a ContainerCreating pulling image "x"; b ContainerCreating pulling image "x"`,
		},
		"then asks itself": {
			in: situation(regular("b"), images(map[string]plan.Image{"a": present})), actions: "StartContainer container=a attempt=0; EnsureImage container=b",
		},
		"the failure of one is the other's": {
			in:    situation(regular("b"), images(map[string]plan.Image{"a": failedPull("x", "ErrImagePull", 4, 1)})),
			waits: `a ImagePullBackOff Back-off pulling image "x": ErrImagePull: broken; b ImagePullBackOff Back-off pulling image "x": ErrImagePull: broken`, again: 6 * time.Second,
		},
		"but not that of another image": {
			in: situation(regular("b"), images(map[string]plan.Image{"b": failedPull("z", "ErrImagePull", 1, 3)})), actions: "EnsureImage container=a",
			waits: `b ContainerCreating pulling image "x"`,
		},
		"the worst failure counts": {
			in:    situation(images(map[string]plan.Image{"a": failedPull("x", "ErrImagePull", 4, 1), "gone": failedPull("x", "ErrImagePull", 5, 2)})),
			waits: `a ImagePullBackOff Back-off pulling image "x": ErrImagePull: broken`, again: 15 * time.Second,
		},
		"registry is unavailable, at first": {
			in: situation(images(map[string]plan.Image{"a": failedPull("x", "RegistryUnavailable", 1, 1)})), waits: "a RegistryUnavailable broken", again: 2 * time.Second,
		},
		"registry is unavailable, later": {
			in:    situation(images(map[string]plan.Image{"a": failedPull("x", "RegistryUnavailable", 4, 1)})),
			waits: `a ImagePullBackOff Back-off pulling image "x": RegistryUnavailable: broken`, again: 6 * time.Second,
		},
		"signature": {
			in:    situation(images(map[string]plan.Image{"a": failedPull("x", "SignatureValidationFailed", 4, 1)})),
			waits: `a ImagePullBackOff Back-off pulling image "x": SignatureValidationFailed: broken`, again: 6 * time.Second,
		},
		"invalid name stays": {
			in: situation(images(map[string]plan.Image{"a": failedPull("x", "InvalidImageName", 4, 1)})), waits: "a InvalidImageName broken", again: 6 * time.Second,
		},
		"never pulled stays": {
			in: situation(images(map[string]plan.Image{"a": failedPull("x", "ErrImageNeverPull", 1, 1)})), waits: "a ErrImageNeverPull broken", again: 9 * time.Second,
		},
		"tried again": {
			in:    situation(images(map[string]plan.Image{"a": failedPull("x", "ErrImagePull", 12, 1)}), pulls("a")),
			waits: `a ImagePullBackOff Back-off pulling image "x": ErrImagePull: broken`,
		},

		"image volume": {in: situation(mounts), actions: "EnsureImage volume=data"},
		"image volume and image": {
			in: situation(mounts, images(nil)), actions: "EnsureImage container=a; EnsureImage volume=data",
		},
		"image volume is being pulled": {in: situation(mounts, pulls(plan.VolumeImage("data"))), waits: `a ContainerCreating pulling image "y"`},
		"image volume is ready": {
			in:      situation(mounts, func(in *plan.Input) { in.Images[plan.VolumeImage("data")] = plan.Image{Ref: "y", Ready: true} }),
			actions: "StartContainer container=a attempt=0",
		},
		"image volume of several containers": {
			in:      situation(mounts, regular("b"), func(in *plan.Input) { in.Pod.Spec.Containers[1].VolumeMounts = []v1.VolumeMount{{Name: "data"}} }),
			actions: "EnsureImage volume=data", waits: `b ContainerCreating pulling image "y"`,
		},
		"image volume fails for those that mount it": {
			in: situation(mounts, regular("b"), func(in *plan.Input) {
				in.Images[plan.VolumeImage("data")] = failedPull("y", "ErrImagePull", 1, 1)
			}),
			actions: "StartContainer container=b attempt=0", waits: "a ErrImagePull broken", again: 2 * time.Second,
		},
		"image volume and volumes of volumed": {
			in: situation(mounts, func(in *plan.Input) {
				in.Pod.Spec.Volumes = append(in.Pod.Spec.Volumes, v1.Volume{Name: "v"})
				in.Images[plan.VolumeImage("data")] = plan.Image{Ref: "y", Ready: true}
				in.Volumes.Message = "not yet"
			}),
			waits: "a ContainerCreating not yet",
		},
		"image volume that nobody mounts": {
			in: situation(mounts, func(in *plan.Input) { in.Pod.Spec.Containers[0].VolumeMounts = nil }), actions: "StartContainer container=a attempt=0",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := plan.Next(test.in)
			var actions, waits []string
			for _, a := range p.Actions {
				actions = append(actions, a.String())
			}
			for _, w := range p.Waits {
				waits = append(waits, w.Container+" "+w.Reason+" "+w.Message)
			}
			if got := strings.Join(actions, "; "); got != test.actions {
				t.Errorf("actions %q, want %q", got, test.actions)
			}
			if got := strings.Join(waits, "; "); got != test.waits {
				t.Errorf("waits %q, want %q", got, test.waits)
			}
			if want := test.in.Now.Add(test.again); test.again > 0 && !p.Again.Equal(want) {
				t.Errorf("again at %v, want %v", p.Again, want)
			}
		})
	}
}

// TestImageDelay: 10 s, doubling, to 5 min.
func TestImageDelay(t *testing.T) {
	want := []time.Duration{0, 10, 20, 40, 80, 160, 300, 300}
	for failures, seconds := range want {
		if got := plan.ImageDelay(failures); got != seconds*time.Second {
			t.Errorf("after %d failures: %v", failures, got)
		}
	}
	if got := plan.ImageDelay(1 << 30); got != 300*time.Second {
		t.Errorf("after very many: %v", got)
	}
}
