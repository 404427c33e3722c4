// Package images removes images that nobody uses: all of them when a disk signal crosses its threshold, the longest
// unused when the file system of images fills beyond the high mark, and, if asked to, those that nobody has used for long.
//
// It owns the knowledge since when an image is there and unused, which begins with each process: for the first minutes
// of a process (the minimum age) nothing is removed. In use is what any container of the runtime refers to, ours or not,
// and what a desired pod names. Pinned images stay. One collection at a time.
package images

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/evictd/internal/policy"
)

// Runtime is what is asked of the runtime. ListContainers must show the containers of everybody.
type Runtime interface {
	ImageStatus(ctx context.Context, image cri.ImageSpec) (cri.Image, error)
	ListImages(ctx context.Context) ([]cri.Image, error)
	RemoveImage(ctx context.Context, image cri.ImageSpec) error
	ListContainers(ctx context.Context, filter cri.Filter) ([]pod.Container, error)
	ImageFsInfo(ctx context.Context) (cri.ImageFsInfo, error)
}

// Options of a Collector.
type Options struct {
	// High and Low are the marks in percent; High of 100 switches the collection by use of disk off.
	High, Low int
	// MinAge is how long an image stays at least.
	MinAge time.Duration
	// MaxAge is how long an unused image stays at most, counted from the start of the process at the earliest; 0: as long as there is room.
	MaxAge time.Duration
	// Period is the time between looks.
	Period time.Duration
	// Desired names the images of desired pods; false when that is not known yet: then nothing is removed.
	Desired func() (images []string, known bool)
	// Usage measures the file system of images.
	Usage func() policy.Observation
	// OnFilesystem is told where images are, or why that is not known.
	OnFilesystem func(mountpoint string, err error)
	// OnFailure is told when removing did not free enough, with the Event's reason.
	OnFailure func(reason string, err error)
	Log       *slog.Logger
	Registry  prometheus.Registerer
}

// Reasons of Events.
const (
	ReasonImageGCFailed       = "ImageGCFailed"
	ReasonFreeDiskSpaceFailed = "FreeDiskSpaceFailed"
	ReasonInvalidDiskCapacity = "InvalidDiskCapacity"
)

const (
	callTimeout = 30 * time.Second
	retryPeriod = 2 * time.Second
)

// Collector removes images.
type Collector struct {
	rt      Runtime
	opts    Options
	removed *prometheus.CounterVec

	mu   sync.Mutex // one collection at a time
	seen map[string]times
}

type times struct{ detected, used time.Time }

// Why images are removed.
const (
	reasonSpace = "space"
	reasonAge   = "age"
)

// New makes a collector.
func New(rt Runtime, opts Options) *Collector {
	c := &Collector{rt: rt, opts: opts, seen: make(map[string]times), removed: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kubelet_image_garbage_collected_total", Help: "Images removed because nobody used them, by reason.",
	}, []string{"reason"})}
	for _, reason := range []string{reasonSpace, reasonAge} { // from 0 on, so that the first is an increase
		c.removed.WithLabelValues(reason)
	}
	if opts.Registry != nil {
		opts.Registry.MustRegister(c.removed)
	}
	return c
}

// Run looks each period: where images are, which are used, and whether the high mark is passed.
func (c *Collector) Run(ctx context.Context) error {
	failures := 0
	for {
		wait := c.opts.Period
		err := c.round(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			failures = 0
		} else {
			failures++
			wait = min(wait, retryPeriod<<min(failures-1, 5))
			if failures == 2 { // one failure may be the runtime's start
				c.opts.Log.WarnContext(ctx, "image garbage collection failed", "error", err)
				c.opts.OnFailure(ReasonImageGCFailed, err)
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

func (c *Collector) round(ctx context.Context) error {
	if err := c.locate(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	images, err := c.detect(ctx)
	if err != nil {
		return err
	}
	if old := policy.Overdue(images, c.opts.MaxAge, time.Now()); len(old) > 0 {
		if _, err := c.remove(ctx, old, reasonAge); err != nil {
			return err
		}
		if images, err = c.detect(ctx); err != nil {
			return err
		}
	}
	usage := c.opts.Usage()
	if usage.Err != nil {
		return nil // said by the one who measures
	}
	if usage.Capacity <= 0 {
		c.opts.OnFailure(ReasonInvalidDiskCapacity, fmt.Errorf("invalid capacity %d on the file system of images", usage.Capacity))
		return nil
	}
	free := policy.ToFree(usage.Capacity, usage.Available, c.opts.High, c.opts.Low)
	if free == 0 {
		return nil
	}
	freed, err := c.remove(ctx, policy.Collect(images, free, c.opts.MinAge, time.Now()), reasonSpace)
	c.opts.Log.InfoContext(ctx, "removed unused images", "wanted", free, "freed", freed, "error", err)
	if err == nil && freed < free {
		err := fmt.Errorf("the file system of images is above its high mark of %d%%: wanted to free %d bytes, freed %d", c.opts.High, free, freed)
		c.opts.OnFailure(ReasonFreeDiskSpaceFailed, err)
	}
	return err
}

// locate finds the file system of images.
func (c *Collector) locate(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	info, err := c.rt.ImageFsInfo(ctx)
	if err == nil && len(info.Images) == 0 {
		err = fault.New(fault.Internal, "the runtime does not say where images are")
	}
	if err != nil {
		c.opts.OnFilesystem("", fmt.Errorf("find the file system of images: %w", err))
		return err
	}
	c.opts.OnFilesystem(info.Images[0].Mountpoint, nil)
	return nil
}

// DeleteUnused removes all images that may go. It returns how many bytes they had.
func (c *Collector) DeleteUnused(ctx context.Context) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	images, err := c.detect(ctx)
	if err != nil {
		return 0, err
	}
	return c.remove(ctx, policy.Collect(images, -1, c.opts.MinAge, time.Now()), reasonSpace)
}

// detect lists the images with what is known of their use.
func (c *Collector) detect(ctx context.Context) ([]policy.Image, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	// Containers first: an image that is used between the two lists was there before.
	containers, err := c.rt.ListContainers(ctx, cri.Filter{})
	if err != nil {
		return nil, fmt.Errorf("find images in use: %w", err)
	}
	desired, known := c.opts.Desired()
	used := make(map[string]bool)
	for i := range containers {
		used[containers[i].ImageID], used[containers[i].ImageRef], used[containers[i].Image] = true, true, true
	}
	for _, name := range desired {
		image, err := c.rt.ImageStatus(ctx, cri.ImageSpec{Image: name})
		switch {
		case err == nil:
			used[image.ID] = true
		case !fault.Is(err, fault.NotFound) && !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.BadRequest):
			return nil, fmt.Errorf("find images in use: %w", err)
		}
	}
	delete(used, "")
	list, err := c.rt.ListImages(ctx)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	return c.note(list, used, known), nil
}

func (c *Collector) note(list []cri.Image, used map[string]bool, known bool) []policy.Image {
	now := time.Now()
	present := make(map[string]times, len(list))
	images := make([]policy.Image, 0, len(list))
	for i := range list {
		image := &list[i]
		t, ok := c.seen[image.ID]
		if !ok {
			t = times{detected: now, used: now}
		}
		inUse := !known || used[image.ID] || slices.ContainsFunc(image.RepoTags, func(s string) bool { return used[s] }) ||
			slices.ContainsFunc(image.RepoDigests, func(s string) bool { return used[s] })
		if inUse {
			t.used = now
		}
		present[image.ID] = t
		images = append(images, policy.Image{
			ID: image.ID, Size: int64(image.Size), Pinned: image.Pinned, InUse: inUse, DetectedAt: t.detected, LastUsed: t.used,
		})
	}
	c.seen = present
	return images
}

func (c *Collector) remove(ctx context.Context, images []policy.Image, reason string) (freed int64, err error) {
	for _, image := range images {
		bounded, cancel := context.WithTimeout(ctx, callTimeout)
		e := c.rt.RemoveImage(bounded, cri.ImageSpec{Image: image.ID})
		cancel()
		if e != nil {
			err = errors.Join(err, fmt.Errorf("remove image %s: %w", image.ID, e))
			if ctx.Err() != nil {
				break
			}
			continue
		}
		delete(c.seen, image.ID)
		c.removed.WithLabelValues(reason).Inc()
		freed += image.Size
		c.opts.Log.InfoContext(ctx, "removed an unused image", "container.image.id", image.ID, "bytes", image.Size, "unused.since", image.LastUsed)
	}
	return freed, err
}
