package manifest

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/podplane/podplane/internal/events"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/telemetry"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/admission"
	"github.com/podplane/podplane/services/syncd/internal/store"
	"github.com/podplane/podplane/services/syncd/internal/watchcache"
)

var tracer = telemetry.Tracer("syncd/manifest")

// Pods is what the source needs of the store.
type Pods interface {
	Synced() <-chan struct{}
	Snapshot() []store.PodChange
	Subscribe(fn func(store.PodChange)) (cancel func())
	CreatePod(ctx context.Context, n store.NewPod) (*watchcache.Object, error)
	DeletePod(ctx context.Context, namespace, name string, opts store.DeleteOptions) (*watchcache.Object, error)
}

// Options are the source's settings.
type Options struct {
	// Dir is the directory, or one file; with "" there is none, and pods of an earlier one are deleted.
	Dir  string
	Node admission.Node
	// Rescan is the time between two readings without a reason, 20 s by default.
	Rescan time.Duration
	// Remote is the URL; without one, pods of an earlier one are deleted.
	Remote Remote
	// Active says whether this replica is the one that does it; nil: it is.
	Active func() bool
	Events events.Sink
	Log    *slog.Logger
}

const (
	defaultRescan = 20 * time.Second
	// settle is how long the directory must be quiet, so that a file is read when its writer is through.
	settle = 50 * time.Millisecond
	// retry is the pause after a change that the bus did not take.
	retry = time.Second
)

// Source keeps the store's static pods what the manifests say. Make one with New and run it.
type Source struct {
	opts    Options
	pods    Pods
	scanner scanner
	remote  *remote       // nil without a URL
	freed   chan struct{} // a pod is gone
	said    map[string]string
	heirs   map[string]Origin // whose pods had the names that are, or were, taken
}

// New makes a source. Its error says what is wrong with Options.Remote.
func New(pods Pods, opts Options) (*Source, error) {
	if opts.Rescan <= 0 {
		opts.Rescan = defaultRescan
	}
	remote, err := newRemote(opts.Remote, opts.Node)
	if err != nil {
		return nil, fmt.Errorf("manifest URL: %w", err)
	}
	return &Source{
		opts: opts, pods: pods, scanner: scanner{path: opts.Dir, node: opts.Node}, remote: remote, freed: make(chan struct{}, 1),
		said: make(map[string]string), heirs: make(map[string]Origin),
	}, nil
}

// Run works until ctx ends.
func (s *Source) Run(ctx context.Context) error {
	select {
	case <-s.pods.Synced():
	case <-ctx.Done():
		return fmt.Errorf("manifest source: %w", ctx.Err())
	}
	defer s.pods.Subscribe(func(c store.PodChange) {
		if c.Deleted {
			notify(s.freed)
		}
	})()
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("manifest source: %w", err)
	}
	defer w.Close() //nolint:errcheck // ends with the process's interest
	if s.opts.Dir != "" {
		if _, err := os.Stat(s.opts.Dir); err != nil {
			if err := os.MkdirAll(s.opts.Dir, 0o750); err != nil {
				s.opts.Log.WarnContext(ctx, "can't make the manifest directory", slog.Any("error", err))
			}
		}
	}
	for ctx.Err() == nil {
		s.wait(ctx, w, s.turn(ctx, w))
	}
	return fmt.Errorf("manifest source: %w", ctx.Err())
}

// turn does what is to be done now and gives the time until the next turn without a reason.
func (s *Source) turn(ctx context.Context, w *fsnotify.Watcher) time.Duration {
	if s.opts.Active != nil && !s.opts.Active() {
		s.remote.forget()
		return retry
	}
	s.remote.begin(ctx, time.Now())
	next := s.opts.Rescan
	if s.remote != nil && s.remote.results == nil {
		next = min(next, max(time.Until(s.remote.due), 0))
	}
	if s.pass(ctx, w) {
		next = min(next, retry)
	}
	return next
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// wait waits for a reason to look again.
func (s *Source) wait(ctx context.Context, w *fsnotify.Watcher, next time.Duration) {
	t := time.NewTimer(next)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-s.freed:
	case f := <-s.remote.pending():
		s.remote.done(f)
		s.tellRemote(ctx, f)
	case <-w.Errors: // what was lost is found by looking
	case <-w.Events:
		quiet := time.NewTimer(settle)
		defer quiet.Stop()
		for limit := 0; limit < 100; limit++ {
			select {
			case <-ctx.Done():
				return
			case <-quiet.C:
				return
			case <-w.Events:
				quiet.Reset(settle)
			}
		}
	}
}

// pass reads the directory and brings the store in line; it gives true when it should be called again soon.
func (s *Source) pass(ctx context.Context, w *fsnotify.Watcher) (again bool) {
	v := survey{pods: make(map[string]standing), heirs: s.heirs, unknown: make(map[podplanev1.Source]bool)}
	if s.opts.Dir != "" {
		// Watching what is watched is no error, and a directory that was made anew is another one.
		if err := w.Add(s.scanner.watched()); err != nil {
			s.opts.Log.DebugContext(ctx, "can't watch the manifest directory", slog.Any("error", err))
		}
		var err error
		if v.wishes, err = s.scanner.scan(time.Now()); err != nil {
			s.tell(ctx, s.opts.Dir, err)
			v.unknown[podplanev1.Source_SOURCE_FILE] = true
		} else {
			delete(s.said, s.opts.Dir)
		}
	}
	if s.remote != nil {
		v.unknown[podplanev1.Source_SOURCE_HTTP] = !s.remote.answered
		v.wishes = append(v.wishes, s.remote.last.wishes...)
	}
	for _, c := range s.pods.Snapshot() {
		p := standing{
			uid: c.UID, name: c.Pod.Namespace + "/" + c.Pod.Name, deleting: c.Pod.DeletionTimestamp != nil,
			from: Origin{Source: c.Record.GetSource(), Path: c.Record.GetOrigin()},
		}
		v.pods[p.name], s.heirs[p.name] = p, p.from
	}
	return s.reconcile(ctx, &v)
}

// reconcile deletes the pods that nobody asks for and stores those that are missing.
func (s *Source) reconcile(ctx context.Context, v *survey) (again bool) {
	for _, p := range v.surplus() {
		again = s.end(ctx, p) || again
	}
	places := make(map[string]bool, len(v.wishes))
	for i := range v.wishes {
		w := &v.wishes[i]
		places[w.place] = true
		if w.err != nil {
			s.tell(ctx, w.place, w.err)
			continue
		}
		switch a, why := v.judge(w); a {
		case stands:
			delete(s.said, w.place)
		case hold:
			s.hold(ctx, w, why)
		case refuse:
			s.refuse(ctx, w, why)
		case create:
			again = s.store(ctx, w, v) || again
		}
	}
	for place := range s.said {
		if !places[place] && place != s.opts.Dir && (s.remote == nil || place != s.remote.from.Path) {
			delete(s.said, place)
		}
	}
	maps.DeleteFunc(s.heirs, func(name string, from Origin) bool { return !v.asksFor(from, name) })
	return again
}

// end deletes a pod that is not asked for any more.
func (s *Source) end(ctx context.Context, p standing) (again bool) {
	namespace, name, _ := strings.Cut(p.name, "/")
	_, err := s.pods.DeletePod(ctx, namespace, name, store.DeleteOptions{Preconditions: store.Preconditions{UID: &p.uid}})
	if err != nil && !fault.Is(err, fault.NotFound) && ctx.Err() == nil {
		s.opts.Log.WarnContext(ctx, "can't delete a static pod", slog.String(string(telemetry.PodUID), p.uid), slog.Any("error", err))
		return true
	}
	return false
}

// store stores the pod of a wish.
func (s *Source) store(ctx context.Context, w *wish, v *survey) (again bool) {
	err := s.create(ctx, w)
	if err == nil {
		s.opts.Log.InfoContext(ctx, "static pod stored", slog.String(string(telemetry.PodUID), string(w.pod.UID)), slog.String("manifest", w.place))
		v.pods[w.name()] = standing{uid: string(w.pod.UID), name: w.name(), from: w.from}
		s.heirs[w.name()] = w.from
		delete(s.said, w.place)
		return false
	}
	if ctx.Err() == nil {
		s.refuse(ctx, w, err.Error())
	}
	if fault.KindOf(err).Retryable() && !fault.Is(err, fault.ResourceExhausted) {
		return true
	}
	delete(s.heirs, w.name()) // it had its turn
	return false
}

// create stores a pod as the beginning of a trace of its own.
func (s *Source) create(ctx context.Context, w *wish) (err error) {
	ctx = telemetry.ContextWithAbout(ctx, telemetry.About{PodUID: string(w.pod.UID), Namespace: w.pod.Namespace, PodName: w.pod.Name})
	ctx, span := tracer.Start(ctx, "manifest.pod.create")
	defer func() { telemetry.End(span, err) }()
	pod := w.pod.DeepCopy()
	pod.Annotations[AnnotationSeen] = time.Now().UTC().Format(time.RFC3339Nano)
	_, err = s.pods.CreatePod(ctx, store.NewPod{
		Pod: pod, Source: w.from.Source, Origin: w.from.Path, Traceparent: telemetry.Traceparent(ctx),
	})
	return err
}
