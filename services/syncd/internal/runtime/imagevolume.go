package runtime

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/syncd/internal/worker"
)

// imageMount mounts an image volume: the runtime does it, read-only always. A path of the volume is taken within the image by the runtime.
func imageMount(r worker.StartRequest, volume, subPath string) (pod.Mount, error) {
	image, ok := r.ImageVolumes[volume]
	if !ok {
		return pod.Mount{}, fmt.Errorf("the image of volume %q is not known", volume)
	}
	return pod.Mount{Image: image.ID, ImageSubPath: subPath, ReadOnly: true}, nil
}

// isImageVolume says whether the pod's volume of this name is an image.
func isImageVolume(p *v1.Pod, name string) bool {
	v := volumeOf(p, name)
	return v != nil && v.Image != nil
}

// lockImageMounts lets containers that mount images be created one after the other in one sandbox: containerd mounts an image once for all of them, and
// mounts it twice when two are created at the same time.
func (e *Executor) lockImageMounts(ctx context.Context, sandbox string, config *cri.ContainerConfig) (unlock func(), err error) {
	if !slices.ContainsFunc(config.Mounts, func(m pod.Mount) bool { return m.Image != "" }) {
		return func() {}, nil
	}
	return e.mounting.Lock(ctx, sandbox)
}
