package images

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/services/syncd/internal/images/access"
)

// pull waits for its turn and pulls.
func (p *Puller) pull(ctx context.Context, j *job) (cri.Image, error) {
	asked := p.now()
	release, err := p.turn(ctx, j)
	if err != nil {
		return cri.Image{}, err
	}
	defer release()
	if err := p.begin.Wait(ctx); err != nil {
		return cri.Image{}, context.Cause(ctx)
	}
	p.event(j, v1.EventTypeNormal, "Pulling", "Pulling image %q", j.Image)
	began := p.now()
	img, err := p.recorded(ctx, j)
	if err != nil {
		if ctx.Err() == nil {
			p.event(j, v1.EventTypeWarning, "Failed", "Failed to pull image %q: %v", j.Image, err)
		}
		return cri.Image{}, err
	}
	done := p.now()
	p.cfg.Metrics.pulled(img.Size, done.Sub(began))
	p.event(j, v1.EventTypeNormal, "Pulled", "Successfully pulled image %q in %s (%s including waiting). Image size: %d bytes.",
		j.Image, done.Sub(began).Round(time.Millisecond), done.Sub(asked).Round(time.Millisecond), img.Size)
	return img, nil
}

// queuedAfter is how long a pull waits for its turn before an Event says so: most wait for a moment only.
const queuedAfter = time.Second

// turn waits until the budget allows one more pull. Turns are given in the order of the calls.
func (p *Puller) turn(ctx context.Context, j *job) (release func(), err error) {
	release = func() { <-p.budget }
	select {
	case p.budget <- struct{}{}:
		return release, nil
	default:
	}
	told := time.AfterFunc(queuedAfter, func() {
		p.event(j, v1.EventTypeNormal, "PullQueued", "Waiting to pull image %q: %d pulls are under way, which is as many as may be", j.Image, cap(p.budget))
	})
	defer told.Stop()
	select {
	case p.budget <- struct{}{}:
		return release, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// recorded pulls with a record of what is done and who may use what comes of it.
func (p *Puller) recorded(ctx context.Context, j *job) (cri.Image, error) {
	if p.cfg.Guard == nil {
		img, _, err := p.try(ctx, j)
		return img, err
	}
	note, err := p.cfg.Guard.Begin(j.image())
	if err != nil {
		return cri.Image{}, &cri.ImageError{Image: j.Image, Reason: cri.ReasonErrImagePull, Err: fault.Wrap(fault.Unavailable, err)}
	}
	img, with, err := p.try(ctx, j)
	if err != nil {
		if e := note.Failed(); e != nil {
			p.cfg.Log.WarnContext(ctx, "the note of a pull can't be removed", slog.String("image", j.Image), slog.Any("error", e))
		}
		return cri.Image{}, err
	}
	good := access.Credentials{NodePodsAccessible: true}
	if with != nil && with.secret != nil {
		good = access.Credentials{KubernetesSecrets: []access.Secret{*with.secret}}
	}
	if err := note.Done(img.ID, good); err != nil {
		// The image is there and this pod may use it; others will have to pull it again.
		p.cfg.Log.WarnContext(ctx, "who may use an image can't be noted", slog.String("image", j.Image), slog.Any("error", err))
	}
	return img, nil
}

// try pulls with each matching credential in turn, without any when there is none. It also returns the one that was good.
func (p *Puller) try(ctx context.Context, j *job) (cri.Image, *credential, error) {
	stop := p.tell(ctx, j)
	defer stop()
	credentials := p.credentials(ctx, j)
	if len(credentials) == 0 {
		img, err := p.fetch(ctx, j, nil)
		return img, nil, err
	}
	var last error
	for i := range credentials {
		img, err := p.fetch(ctx, j, credentials[i].auth)
		if err == nil {
			return img, &credentials[i], nil
		}
		last = err
		if ctx.Err() != nil || !denied(err) {
			break
		}
	}
	return cri.Image{}, nil, last
}

// fetch makes the runtime pull, and describes the image.
func (p *Puller) fetch(ctx context.Context, j *job, auth *cri.AuthConfig) (cri.Image, error) {
	ref, err := p.runtime.PullImage(ctx, j.spec, auth, nil)
	if err != nil {
		return cri.Image{}, err
	}
	img, err := p.runtime.ImageStatus(ctx, cri.ImageSpec{Image: ref, UserImage: j.Image, RuntimeHandler: j.spec.RuntimeHandler})
	if err != nil {
		return cri.Image{}, p.inspectFailed(j, err)
	}
	return img, nil
}

// credentials are all that match the image, in the order in which they are tried. Sources that fail are told of and offer nothing.
func (p *Puller) credentials(ctx context.Context, j *job) []credential {
	all := append([]credential(nil), p.podCredentials(j)...)
	node, err := p.node.match(j.ref)
	all = append(all, node...)
	auths, providerErr := p.cfg.Providers.Get(ctx, j.ref.repository())
	var ring keyring
	for _, a := range auths {
		ring = append(ring, credential{pattern: normalizeRegistry(a.Pattern), auth: dockerAuth{Username: a.Username, Password: a.Password}.config()})
	}
	if err := errors.Join(err, providerErr); err != nil && ctx.Err() == nil {
		p.event(j, v1.EventTypeWarning, "FailedToRetrieveImagePullCredentials",
			"Unable to retrieve some of the node's registry credentials (%v); attempting to pull the image may not succeed.", err)
	}
	return append(all, ring.match(j.ref)...)
}

// denied says whether other credentials may help.
func denied(err error) bool {
	var e *cri.ImageError
	if !errors.As(err, &e) {
		return false
	}
	switch fault.KindOf(e.Err) {
	case fault.Unauthenticated, fault.PermissionDenied, fault.NotFound, fault.Internal:
		return true
	}
	return false
}

// tell reports a pull that goes on for long in Events, until stop is called.
func (p *Puller) tell(ctx context.Context, j *job) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	began := p.now()
	go func() {
		defer close(ended)
		ticker := time.NewTicker(p.cfg.Progress)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			known := p.known(ctx, began)
			if ctx.Err() != nil {
				return
			}
			p.event(j, v1.EventTypeNormal, "Pulling", "Still pulling image %q after %s%s", j.Image, p.now().Sub(began).Round(time.Second), known)
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// known says what the runtime knows of the downloads under way. They can't be told apart by image: with several pulls it is about all of them.
func (p *Puller) known(ctx context.Context, since time.Time) string {
	list, err := p.runtime.Downloads(ctx)
	if err != nil {
		return ""
	}
	whose := "downloads"
	if len(p.budget) > 1 {
		whose = "all downloads of the node"
	}
	var parts int
	var have, total int64
	for _, d := range list {
		if d.UpdatedAt.Before(since) {
			continue // left by an earlier pull
		}
		parts++
		have += d.Offset
		total += max(d.Total, d.Offset)
	}
	if parts == 0 {
		return ": nothing is being downloaded, it waits for the registry or is being unpacked"
	}
	return fmt.Sprintf(": %s under way: %d, with %s of %s", whose, parts, bytesOf(have), bytesOf(total))
}

func bytesOf(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	f, i := float64(n)/unit, 0
	for f >= unit && i < 3 {
		f, i = f/unit, i+1
	}
	return fmt.Sprintf("%.1f %s", f, []string{"KiB", "MiB", "GiB", "TiB"}[i])
}
