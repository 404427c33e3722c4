package runtime_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/services/syncd/internal/runtime"
	"github.com/podplane/podplane/services/syncd/internal/worker"
)

// handlers makes the runtime able to mount recursively read-only, or not.
func handlers(able bool, err error) func(*runtime.Config) {
	return func(c *runtime.Config) {
		c.Handlers = func(context.Context) (map[string]cri.HandlerFeatures, error) {
			return map[string]cri.HandlerFeatures{"": {RecursiveReadOnlyMounts: able}}, err
		}
	}
}

func TestRecursiveReadOnly(t *testing.T) {
	for name, c := range map[string]struct {
		mode v1.RecursiveReadOnlyMode
		node func(*runtime.Config)
		want bool
		says string
	}{
		"enabled":                 {v1.RecursiveReadOnlyEnabled, handlers(true, nil), true, ""},
		"enabled, not able":       {v1.RecursiveReadOnlyEnabled, handlers(false, nil), false, "not supported by the runtime handler"},
		"if possible":             {v1.RecursiveReadOnlyIfPossible, handlers(true, nil), true, ""},
		"if possible, not able":   {v1.RecursiveReadOnlyIfPossible, handlers(false, nil), false, ""},
		"disabled":                {v1.RecursiveReadOnlyDisabled, handlers(true, nil), false, ""},
		"the runtime is not told": {v1.RecursiveReadOnlyEnabled, func(*runtime.Config) {}, false, "not supported"},
		"the runtime is away":     {v1.RecursiveReadOnlyIfPossible, handlers(false, errors.New("gone fishing")), false, "gone fishing"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, c.node)
			p := newPod(func(s *v1.PodSpec, k *v1.Container) {
				s.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
				k.VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/d", ReadOnly: true, RecursiveReadOnly: &c.mode}}
			})
			_, config, err := n.start(p, cri.Image{})
			if c.says != "" {
				var start *worker.StartError
				if !errors.As(err, &start) || start.Reason != worker.ReasonCreateContainerConfigError || !strings.Contains(err.Error(), c.says) {
					t.Errorf("error %v, want a configuration error that says %q", err, c.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if m := config.Mounts[0]; m.RecursiveReadOnly != c.want || !m.ReadOnly {
				t.Errorf("mount %+v, want recursively read-only: %t", m, c.want)
			}
		})
	}
}

// What belongs to the pod may be labelled for SELinux, what is the node's may not.
func TestRelabel(t *testing.T) {
	n := newNode(t)
	p := newPod(func(s *v1.PodSpec, c *v1.Container) {
		s.Volumes = []v1.Volume{
			{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
			{Name: "cm", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/srv"}}},
		}
		c.VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/d"}, {Name: "cm", MountPath: "srv"}}
	})
	_, config := n.mustStart(p)
	want := map[string]bool{"/d": true, "/srv": false, "/etc/hosts": true, "/dev/termination-log": true}
	for _, m := range config.Mounts {
		if relabel, known := want[m.ContainerPath]; !known || m.SELinuxRelabel != relabel {
			t.Errorf("mount %+v", m)
		}
		delete(want, m.ContainerPath)
	}
	if len(want) > 0 {
		t.Errorf("without the mounts %v", want)
	}
}

func TestSeccompDefault(t *testing.T) {
	for _, on := range []bool{false, true} {
		n := newNode(t, func(c *runtime.Config) { c.SeccompDefault = on })
		_, config := n.mustStart(newPod())
		want := cri.ProfileUnconfined
		if on {
			want = cri.ProfileRuntimeDefault
		}
		if got := config.Security.Seccomp.Type; got != want {
			t.Errorf("seccompDefault %t: %v, want %v", on, got, want)
		}
		n = newNode(t, func(c *runtime.Config) { c.SeccompDefault = on })
		_, config = n.mustStart(newPod(func(_ *v1.PodSpec, c *v1.Container) {
			c.SecurityContext = &v1.SecurityContext{SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeUnconfined}}
		}))
		if got := config.Security.Seccomp.Type; got != cri.ProfileUnconfined {
			t.Errorf("what is asked for is %v", got)
		}
	}
}

func TestSubPathExprOfAnImage(t *testing.T) {
	for expr, part := range map[string]string{
		"$(NAME)/conf": "p/conf", "plain": "plain", "$$(NAME)": "$(NAME)", "$(NONE)/x": "!missing value", "$(EMPTY)": "!missing value", "a/$(UP)": "!within the volume",
	} {
		t.Run(expr, func(t *testing.T) {
			n := newNode(t)
			p := newPod(func(s *v1.PodSpec, c *v1.Container) {
				s.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "data:1"}}}}
				c.Env = []v1.EnvVar{{Name: "NAME", Value: "p"}, {Name: "EMPTY"}, {Name: "UP", Value: "../../etc"}}
				c.VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/data", SubPathExpr: expr}}
			})
			s, err := n.exec.CreateSandbox(t.Context(), p, 0, "")
			if err != nil {
				t.Fatal(err)
			}
			image, err := n.exec.EnsureImage(t.Context(), p, want(p))
			if err != nil {
				t.Fatal(err)
			}
			_, err = n.exec.StartContainer(t.Context(), worker.StartRequest{
				Pod: p, Container: "c", Sandbox: s, Image: image, ImageVolumes: map[string]cri.Image{"data": {ID: "sha256:data"}},
			})
			if says, bad := strings.CutPrefix(part, "!"); bad {
				if err == nil || !strings.Contains(err.Error(), says) {
					t.Errorf("error %v, want one that says %q", err, says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := n.config.Mounts[0].ImageSubPath; got != part {
				t.Errorf("the part is %q, want %q", got, part)
			}
		})
	}
}
