// Package images makes the images of containers and image volumes present, by their pull policy.
//
// Pulls go in parallel, also within one pod, up to a budget, first come, first served; what waits for the budget or for the registry is cancelled with its context, and says so
// in Events. Whether and when a failed pull is tried again is decided by the caller. A pull has no deadline: that it goes on is told in Events, with what the runtime knows of it.
//
// # Credentials
//
// A pull is tried with each that matches the image, in this order, until one is good: those of the pod's imagePullSecrets, those of the node's Docker
// configuration, those of credential provider plugins (package credprovider); without any if none matches. They never appear in errors or events.
//
// An image that is present may be used without pulling only by pods that are known to have good credentials for it (package access).
package images

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/time/rate"
	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/services/syncd/internal/images/access"
	"github.com/podplane/podplane/services/syncd/internal/images/credprovider"
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
	ListImages(ctx context.Context) ([]cri.Image, error)
	// Downloads says what is being downloaded at this moment; of kind Unimplemented where the runtime does not tell.
	Downloads(ctx context.Context) ([]cri.Download, error)
}

// Config is how images are pulled on this node. The zero value pulls with the pods' own secrets and without the check of images that others pulled.
type Config struct {
	// Parallel is how many pulls run at one time; 0: DefaultParallel, 1: one after the other.
	Parallel int
	// QPS is how many pulls may begin in a second, Burst how many at once when none has for a while; 0: as many as there are. Those over it wait.
	QPS, Burst int
	// Handler gives the runtime handler that a pod's images are pulled for; nil: they are pulled for all.
	Handler func(*v1.Pod) (string, error)
	// NodeConfigs are where the node's Docker configuration may be: the first file that there is counts.
	NodeConfigs []string
	// Providers are the credential provider plugins; may be nil.
	Providers *credprovider.Set
	// Guard keeps pods from images that others pulled; may be nil.
	Guard *access.Guard
	// Progress is how often a pull that goes on is told of; 0: DefaultProgress.
	Progress time.Duration
	// Metrics may be nil, Log must not.
	Metrics *Metrics
	Log     *slog.Logger
}

// Defaults of Config.
const (
	DefaultParallel = 6
	DefaultProgress = 30 * time.Second
)

// Puller makes images present. Its methods may be called from many goroutines.
type Puller struct {
	cfg     Config
	runtime Runtime
	secrets Secrets
	events  Recorder
	node    nodeConfig
	budget  chan struct{}
	begin   *rate.Limiter
	now     func() time.Time
}

// New makes a Puller.
func New(cfg Config, runtime Runtime, secrets Secrets, events Recorder) *Puller {
	if cfg.Parallel <= 0 {
		cfg.Parallel = DefaultParallel
	}
	if cfg.Progress <= 0 {
		cfg.Progress = DefaultProgress
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	begin := rate.NewLimiter(rate.Inf, 0)
	if cfg.QPS > 0 {
		begin = rate.NewLimiter(rate.Limit(cfg.QPS), max(1, cfg.Burst))
	}
	return &Puller{
		cfg: cfg, begin: begin, runtime: runtime, secrets: secrets, events: events, node: nodeConfig{files: cfg.NodeConfigs},
		budget: make(chan struct{}, cfg.Parallel), now: time.Now,
	}
}

// MatchesRegistry says whether an image is one that a registry's pattern is about: host[:port][/path], with wildcards in labels of the host.
func MatchesRegistry(pattern, image string) bool {
	ref, err := parseReference(image)
	return err == nil && matchesImage(normalizeRegistry(pattern), ref)
}

// tidyPeriod is how often the pull records are compared with the images, and tidyAgain how soon when that failed.
const (
	tidyPeriod = time.Hour
	tidyAgain  = time.Minute
)

// Run keeps the pull records tidy until ctx ends.
func (p *Puller) Run(ctx context.Context) error {
	if p.cfg.Guard == nil {
		<-ctx.Done()
		return nil
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		next := tidyPeriod
		if err := p.cfg.Guard.Tidy(ctx, p.runtime); err != nil && ctx.Err() == nil {
			next = tidyAgain
			p.cfg.Log.WarnContext(ctx, "the pull records can't be tidied", slog.Any("error", err))
		}
		timer.Reset(next)
	}
}

// Want is an image that a pod is to have.
type Want struct {
	// Container is whose image it is; empty for an image volume.
	Container string
	Image     string
	Policy    v1.PullPolicy
}

// job is one call of Ensure.
type job struct {
	Want
	pod    *v1.Pod
	ref    reference
	spec   cri.ImageSpec
	secret []credential
	looked bool
}

func (p *Puller) event(j *job, eventType, reason, format string, args ...any) {
	p.events.PodEvent(j.pod, j.Container, eventType, reason, fmt.Sprintf(format, args...))
}

// Ensure makes an image present and describes it. An error is a *cri.ImageError, or the context's.
func (p *Puller) Ensure(ctx context.Context, pod *v1.Pod, w Want) (cri.Image, error) {
	j := &job{Want: w, pod: pod, spec: cri.ImageSpec{Image: w.Image, UserImage: w.Image}}
	var err error
	if j.ref, err = parseReference(w.Image); err != nil {
		err = fault.New(fault.Invalid, "Failed to apply default image tag %q: couldn't parse image name %q: %w", w.Image, w.Image, err)
		p.event(j, v1.EventTypeWarning, "InspectFailed", "%v", err)
		return cri.Image{}, &cri.ImageError{Image: w.Image, Reason: cri.ReasonInvalidImageName, Err: err}
	}
	if p.cfg.Handler != nil {
		if j.spec.RuntimeHandler, err = p.cfg.Handler(pod); err != nil {
			return cri.Image{}, p.inspectFailed(j, err)
		}
	}
	if w.Policy == v1.PullAlways {
		p.cfg.Metrics.ensured(w.Policy, "unknown", true)
		return p.pull(ctx, j)
	}
	img, err := p.runtime.ImageStatus(ctx, j.spec)
	switch {
	case err == nil && p.allowed(ctx, j, &img):
		p.cfg.Metrics.ensured(w.Policy, "true", false)
		p.event(j, v1.EventTypeNormal, "Pulled", "Container image %q already present on machine and can be accessed by the pod", w.Image)
		return img, nil
	case err != nil && !fault.Is(err, fault.NotFound):
		return cri.Image{}, p.inspectFailed(j, err)
	case w.Policy == v1.PullNever:
		return cri.Image{}, p.neverPull(j, err == nil)
	}
	p.cfg.Metrics.ensured(w.Policy, fmt.Sprint(err == nil), true)
	return p.pull(ctx, j)
}

// allowed says whether the pod may use the image as it is on the node.
func (p *Puller) allowed(ctx context.Context, j *job, present *cri.Image) bool {
	if p.cfg.Guard == nil {
		return true
	}
	var offered []access.Secret
	for _, c := range p.podCredentials(j) {
		offered = append(offered, *c.secret)
	}
	ok, err := p.cfg.Guard.Allowed(j.image(), present, offered)
	if err != nil {
		p.cfg.Log.WarnContext(ctx, "a pull record can't be used", slog.String("image", j.Image), slog.Any("error", err))
	}
	p.cfg.Metrics.checked(ok, err)
	return ok
}

func (j *job) image() access.Image {
	return access.Image{Name: j.Image, Repository: j.ref.repository()}
}

// podCredentials are those of the pod's secrets, which are looked up once.
func (p *Puller) podCredentials(j *job) []credential {
	if j.looked {
		return j.secret
	}
	var missing []string
	j.secret, missing = p.secretsOf(j.pod, j.ref)
	j.looked = true
	if len(missing) > 0 {
		p.event(j, v1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
			"Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", strings.Join(missing, ", "))
	}
	return j.secret
}

func (p *Puller) neverPull(j *job, present bool) error {
	err := fault.New(fault.NotFound, "Container image %q is not present with pull policy of Never", j.Image)
	if present {
		err = fault.New(fault.PermissionDenied,
			"Container image %q is present with pull policy of Never, but it was pulled with other credentials than this pod's", j.Image)
	}
	p.event(j, v1.EventTypeWarning, ReasonErrImageNeverPull, "%v", err)
	return &cri.ImageError{Image: j.Image, Reason: ReasonErrImageNeverPull, Err: err}
}

func (p *Puller) inspectFailed(j *job, err error) error {
	if fault.Is(err, fault.Canceled) {
		return err
	}
	reason := ReasonImageInspectError
	if fault.Is(err, fault.Invalid) || fault.Is(err, fault.BadRequest) {
		reason = cri.ReasonInvalidImageName
	}
	p.event(j, v1.EventTypeWarning, "InspectFailed", "Failed to inspect image %q: %v", j.Image, err)
	return &cri.ImageError{Image: j.Image, Reason: reason, Err: err}
}
