package plan

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// VolumeImage is the key of an image volume's image in [Input].Images and [Busy].Images. No container has such a name.
func VolumeImage(volume string) string { return "volume/" + volume }

// ImageOf returns the image that a key of [Input].Images is about, and its pull policy.
func ImageOf(p *v1.Pod, key string) (ref string, policy v1.PullPolicy, ok bool) {
	for _, list := range [][]v1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == key {
				return list[i].Image, list[i].ImagePullPolicy, true
			}
		}
	}
	for i := range p.Spec.EphemeralContainers {
		if e := &p.Spec.EphemeralContainers[i]; e.Name == key {
			return e.Image, e.ImagePullPolicy, true
		}
	}
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; v.Image != nil && VolumeImage(v.Name) == key {
			return v.Image.Reference, v.Image.PullPolicy, true
		}
	}
	return "", "", false
}

// imageVolume returns the source of the pod's volume of this name when it is an image volume.
func imageVolume(p *v1.Pod, name string) *v1.ImageVolumeSource {
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; v.Name == name {
			return v.Image
		}
	}
	return nil
}

// images says whether the container's image and those that it mounts are ready for a start, and plans what makes them so.
func (p *Plan) images(in *Input, spec *v1.Container) bool {
	ready := p.image(in, spec, spec.Image, Action{Kind: EnsureImage, Container: spec.Name})
	for i := range spec.VolumeMounts {
		volume := spec.VolumeMounts[i].Name
		if source := imageVolume(in.Pod, volume); source != nil {
			ready = p.image(in, spec, source.Reference, Action{Kind: EnsureImage, Volume: volume}) && ready
		}
	}
	return ready
}

// image says whether one image is ready, and plans the action that makes it so. While it is not, the container waits.
func (p *Plan) image(in *Input, spec *v1.Container, ref string, ensure Action) bool {
	key := ensure.ImageKey()
	img := in.imageState(key, ref)
	if img.Ready {
		return true
	}
	w := Wait{Step: StepImage, Resource: ref, Container: spec.Name, Reason: img.Reason, Message: img.Message, Since: img.FailedAt}
	switch {
	case img.Failures > 0 && in.Now.Before(img.NotBefore):
		w.Until = img.NotBefore
		if shown := img.FailedAt.Add(imageBackoffShown); pullFailed(img.Reason) && in.Now.Before(shown) {
			p.again(shown)
		} else {
			w.Reason, w.Message = img.backoff(ref)
		}
		p.wait(w)
	case p.pulling(in, ref):
		w.Reason, w.Message = in.creating(), fmt.Sprintf("pulling image %q", ref)
		if img.Failures > 0 {
			w.Reason, w.Message = img.backoff(ref)
		}
		p.wait(w)
	default:
		p.do(ensure)
	}
	return false
}

// ImageKey is the key in [Input].Images of the image that an EnsureImage is about.
func (a *Action) ImageKey() string {
	if a.Volume != "" {
		return VolumeImage(a.Volume)
	}
	return a.Container
}

// imageState is what is known of an image. Failures are the pod's, whichever container of it asked.
func (in *Input) imageState(key, ref string) Image {
	if img := in.Images[key]; img.Ref == ref && img.Ready {
		return img
	}
	worst := Image{}
	for _, img := range in.Images {
		if img.Ref == ref && !img.Ready && img.worseThan(&worst) {
			worst = img
		}
	}
	return worst
}

func (i *Image) worseThan(o *Image) bool {
	if i.Failures != o.Failures {
		return i.Failures > o.Failures
	}
	return i.FailedAt.After(o.FailedAt)
}

// pulling says whether the image is being ensured, for whichever of the pod's containers: the others wait, and find it present.
func (p *Plan) pulling(in *Input, ref string) bool {
	is := func(key string) bool {
		other, _, ok := ImageOf(in.Pod, key)
		return ok && other == ref
	}
	for key := range in.Busy.Images {
		if is(key) {
			return true
		}
	}
	return slices.ContainsFunc(p.Actions, func(a Action) bool { return a.Kind == EnsureImage && is(a.ImageKey()) })
}

// pullFailed says whether the reason is that of a failed pull, which is one of back-off after a moment. The others were found without asking a registry and stay.
func pullFailed(reason string) bool {
	switch reason {
	case ReasonErrImagePull, "RegistryUnavailable", "SignatureValidationFailed":
		return true
	}
	return false
}

// backoff is the waiting reason and message between failed attempts.
func (i *Image) backoff(ref string) (reason, message string) {
	if !pullFailed(i.Reason) {
		return i.Reason, i.Message
	}
	return ReasonImagePullBackOff, fmt.Sprintf("Back-off pulling image %q: %s: %s", ref, i.Reason, i.Message)
}
