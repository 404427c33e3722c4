package runtime_test

import (
	"reflect"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/syncd/internal/worker"
)

func TestImageVolumes(t *testing.T) {
	n := newNode(t)
	p := newPod(func(s *v1.PodSpec, c *v1.Container) {
		s.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "data:1"}}}}
		c.VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/data", SubPath: "a/b"}}
	})
	s, err := n.exec.CreateSandbox(t.Context(), p, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	image, err := n.exec.EnsureImage(t.Context(), p, want(p))
	if err != nil {
		t.Fatal(err)
	}
	r := worker.StartRequest{Pod: p, Container: "c", Sandbox: s, Image: image}
	if _, err := n.exec.StartContainer(t.Context(), r); err == nil || !strings.Contains(err.Error(), `the image of volume "data" is not known`) {
		t.Errorf("without the volume's image: %v", err)
	}
	r.ImageVolumes = map[string]cri.Image{"data": {ID: "sha256:data"}}
	if _, err := n.exec.StartContainer(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	want := pod.Mount{ContainerPath: "/data", Image: "sha256:data", ImageSubPath: "a/b", ReadOnly: true}
	if got := n.config.Mounts[0]; !reflect.DeepEqual(got, want) {
		t.Errorf("mount %+v, want %+v", got, want)
	}
}
