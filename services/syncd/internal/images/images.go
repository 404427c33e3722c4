// Package images makes the images of containers present, by their pull policy.
//
// Pulls go in parallel, also within one pod, up to a budget; what waits for the budget or for the registry is cancelled with its context. Whether and when a failed pull is
// tried again is decided by the caller. Credentials come from the pod's imagePullSecrets; they never appear in errors or events.
package images

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
)

// Reasons of failures that are found here; others come from the runtime's [cri.ImageError].
const (
	ReasonErrImageNeverPull = "ErrImageNeverPull"
	ReasonImageInspectError = "ImageInspectError"
)

// Secrets looks up Secrets.
type Secrets interface {
	Secret(namespace, name string) (*v1.Secret, bool)
}

// Recorder records Events about pods.
type Recorder interface {
	PodEvent(p *v1.Pod, container, eventType, reason, message string)
}

// Runtime is what a Puller needs of the container runtime.
type Runtime interface {
	PullImage(ctx context.Context, image cri.ImageSpec, auth *cri.AuthConfig, sandbox *cri.SandboxConfig) (string, error)
	ImageStatus(ctx context.Context, image cri.ImageSpec) (cri.Image, error)
}

// Puller makes images present.
type Puller struct {
	runtime Runtime
	secrets Secrets
	events  Recorder
	budget  chan struct{}
	now     func() time.Time
}

// DefaultParallel is how many pulls run at one time unless configured.
const DefaultParallel = 6

// New makes a Puller that runs at most parallel pulls at one time.
func New(runtime Runtime, secrets Secrets, events Recorder, parallel int) *Puller {
	if parallel <= 0 {
		parallel = DefaultParallel
	}
	return &Puller{runtime: runtime, secrets: secrets, events: events, budget: make(chan struct{}, parallel), now: time.Now}
}

// Ensure makes the image of a container present and describes it. An error is a *cri.ImageError, or the context's.
func (p *Puller) Ensure(ctx context.Context, pod *v1.Pod, c *v1.Container) (cri.Image, error) {
	spec := cri.ImageSpec{Image: c.Image, UserImage: c.Image}
	if c.ImagePullPolicy != v1.PullAlways {
		img, err := p.runtime.ImageStatus(ctx, spec)
		switch {
		case err == nil:
			p.events.PodEvent(pod, c.Name, v1.EventTypeNormal, "Pulled", fmt.Sprintf("Container image %q already present on machine", c.Image))
			return img, nil
		case !fault.Is(err, fault.NotFound):
			return cri.Image{}, p.inspectFailed(pod, c, err)
		case c.ImagePullPolicy == v1.PullNever:
			err = &cri.ImageError{
				Image: c.Image, Reason: ReasonErrImageNeverPull,
				Err: fault.New(fault.NotFound, "Container image %q is not present with pull policy of Never", c.Image),
			}
			p.events.PodEvent(pod, c.Name, v1.EventTypeWarning, ReasonErrImageNeverPull, err.Error())
			return cri.Image{}, err
		}
	}
	return p.pull(ctx, pod, c, spec)
}

func (p *Puller) inspectFailed(pod *v1.Pod, c *v1.Container, err error) error {
	if fault.Is(err, fault.Canceled) {
		return err
	}
	reason := ReasonImageInspectError
	if fault.Is(err, fault.Invalid) || fault.Is(err, fault.BadRequest) {
		reason = cri.ReasonInvalidImageName
	}
	p.events.PodEvent(pod, c.Name, v1.EventTypeWarning, "InspectFailed", fmt.Sprintf("Failed to inspect image %q: %v", c.Image, err))
	return &cri.ImageError{Image: c.Image, Reason: reason, Err: err}
}

func (p *Puller) pull(ctx context.Context, pod *v1.Pod, c *v1.Container, spec cri.ImageSpec) (cri.Image, error) {
	asked := p.now()
	select {
	case p.budget <- struct{}{}:
		defer func() { <-p.budget }()
	case <-ctx.Done():
		return cri.Image{}, ctx.Err()
	}
	p.events.PodEvent(pod, c.Name, v1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", c.Image))
	began := p.now()
	ref, err := p.try(ctx, pod, c.Name, spec)
	if err != nil {
		if ctx.Err() == nil {
			p.events.PodEvent(pod, c.Name, v1.EventTypeWarning, "Failed", fmt.Sprintf("Failed to pull image %q: %v", c.Image, err))
		}
		return cri.Image{}, err
	}
	img, err := p.runtime.ImageStatus(ctx, cri.ImageSpec{Image: ref, UserImage: c.Image})
	if err != nil {
		return cri.Image{}, p.inspectFailed(pod, c, err)
	}
	done := p.now()
	p.events.PodEvent(pod, c.Name, v1.EventTypeNormal, "Pulled", fmt.Sprintf("Successfully pulled image %q in %s (%s including waiting). Image size: %d bytes.",
		c.Image, done.Sub(began).Round(time.Millisecond), done.Sub(asked).Round(time.Millisecond), img.Size))
	return img, nil
}

// try pulls with each matching credential in turn, without any when there is none.
func (p *Puller) try(ctx context.Context, pod *v1.Pod, container string, spec cri.ImageSpec) (string, error) {
	credentials := p.credentials(pod, container, spec.Image)
	if len(credentials) == 0 {
		return p.runtime.PullImage(ctx, spec, nil, nil)
	}
	var errs []error
	for _, auth := range credentials {
		ref, err := p.runtime.PullImage(ctx, spec, auth, nil)
		if err == nil {
			return ref, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil || !denied(err) {
			return "", err
		}
	}
	return "", errs[len(errs)-1]
}

// denied says whether other credentials may help.
func denied(err error) bool {
	var e *cri.ImageError
	if !errors.As(err, &e) {
		return false
	}
	kind := fault.KindOf(e.Err)
	return kind == fault.Unauthenticated || kind == fault.PermissionDenied || kind == fault.NotFound || kind == fault.Internal
}
