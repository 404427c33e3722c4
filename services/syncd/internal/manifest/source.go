// Package manifest makes pods of the files in a directory: static pods, as Kubernetes calls them.
//
// # Files
//
// A file is a manifest when its name ends in .yaml, .yml or .json and does not begin with a dot; sub-directories are not read. It holds
// one v1.Pod, of at most 10 MiB. Links are followed; what is changed behind a link is seen at the next rescan, not at once. The directory is read when inotify
// tells of a change in it and each 20 s; a missing directory is an empty one.
//
// # Identity
//
// The pod's name gets the node's as a suffix. Its UID comes from the manifest's content (not its form), so a restart of syncd keeps the
// pod and a changed manifest is another pod: the old one is deleted with its grace period, and the new one is stored when the old one is
// gone. Until then an Event says what it waits for.
//
// # Failures
//
// A file that can't be read as a pod is told in the log and in an Event of the node, with file and line; the other files count, and a pod
// that the file made before stays until the file is mended or removed, so that an editor that writes in place never ends a pod. A file that is gone
// ends its pod. Nothing is deleted before the directory has been read completely. What the node refuses (no room, a port or a name in use), and what a bus
// that is away refuses, is tried again when a pod goes and at the next rescan.
package manifest

import (
	"context"
	"fmt"
	"log/slog"
	"os"
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
	// Dir is the directory; with "" there is none, and pods of an earlier one are deleted.
	Dir  string
	Node admission.Node
	// Rescan is the time between two readings without a reason, 20 s by default.
	Rescan time.Duration
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

// Source keeps the store's static pods what the directory says. Make one with New and run it.
type Source struct {
	opts    Options
	pods    Pods
	scanner scanner
	freed   chan struct{} // a pod is gone
	said    map[string]string
}

// New makes a source.
func New(pods Pods, opts Options) *Source {
	if opts.Rescan <= 0 {
		opts.Rescan = defaultRescan
	}
	return &Source{
		opts: opts, pods: pods, scanner: scanner{dir: opts.Dir, node: opts.Node}, freed: make(chan struct{}, 1), said: make(map[string]string),
	}
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
		if err := os.MkdirAll(s.opts.Dir, 0o750); err != nil {
			s.opts.Log.WarnContext(ctx, "can't make the manifest directory", slog.Any("error", err))
		}
	}
	for ctx.Err() == nil {
		next := s.opts.Rescan
		if inactive := s.opts.Active != nil && !s.opts.Active(); inactive || s.pass(ctx, w) {
			next = min(next, retry)
		}
		s.wait(ctx, w, next)
	}
	return fmt.Errorf("manifest source: %w", ctx.Err())
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
	var files []found
	if s.opts.Dir != "" {
		// Watching what is watched is no error, and a directory that was made anew is another one.
		if err := w.Add(s.opts.Dir); err != nil {
			s.opts.Log.DebugContext(ctx, "can't watch the manifest directory", slog.Any("error", err))
		}
		var err error
		if files, err = s.scanner.scan(time.Now()); err != nil {
			s.tell(ctx, s.opts.Dir, err)
			return false
		}
	}
	return s.reconcile(ctx, files)
}

// reconcile deletes the pods that no file wants and stores those that are missing.
func (s *Source) reconcile(ctx context.Context, files []found) (again bool) {
	present := make(map[string]store.PodChange)
	names := make(map[string]store.PodChange)
	for _, c := range s.pods.Snapshot() {
		names[c.Pod.Namespace+"/"+c.Pod.Name] = c
		if c.Record.GetSource() == podplanev1.Source_SOURCE_FILE {
			present[c.UID] = c
		}
	}
	wanted, unreadable := make(map[string]bool), make(map[string]bool)
	said := make(map[string]string)
	for _, f := range files {
		if f.err != nil {
			unreadable[f.path] = true
			s.tell(ctx, f.path, f.err)
		} else {
			wanted[string(f.pod.UID)] = true
		}
		if text, ok := s.said[f.path]; ok {
			said[f.path] = text
		}
	}
	s.said = said
	for uid, c := range present {
		if !wanted[uid] && !unreadable[c.Record.GetOrigin()] {
			again = s.end(ctx, c) || again
		}
	}
	for _, f := range files {
		if f.err == nil {
			again = s.ensure(ctx, f, present, names) || again
		}
	}
	return again
}

// end deletes a pod whose file is gone or says something else now.
func (s *Source) end(ctx context.Context, c store.PodChange) (again bool) {
	if c.Pod.DeletionTimestamp != nil {
		return false
	}
	uid := c.UID
	_, err := s.pods.DeletePod(ctx, c.Pod.Namespace, c.Pod.Name, store.DeleteOptions{Preconditions: store.Preconditions{UID: &uid}})
	if err != nil && !fault.Is(err, fault.NotFound) && ctx.Err() == nil {
		s.opts.Log.WarnContext(ctx, "can't delete a static pod", slog.String(string(telemetry.PodUID), uid), slog.Any("error", err))
		return true
	}
	return false
}

// ensure stores the pod of a file unless it is there.
func (s *Source) ensure(ctx context.Context, f found, present, names map[string]store.PodChange) (again bool) {
	uid, name := string(f.pod.UID), f.pod.Namespace+"/"+f.pod.Name
	if c, there := present[uid]; there {
		if c.Pod.DeletionTimestamp != nil {
			s.hold(ctx, f, "waiting until the pod that is being deleted is gone")
		} else {
			delete(s.said, f.path)
		}
		return false
	}
	if c, taken := names[name]; taken {
		if c.Record.GetOrigin() == f.path {
			s.hold(ctx, f, "the manifest changed: waiting until the pod of its former content is gone")
		} else {
			s.tell(ctx, f.path, fmt.Errorf("%s: the name of pod %s is taken by another one (UID %s)", f.path, name, c.UID))
		}
		return false
	}
	err := s.create(ctx, f)
	if err == nil {
		s.opts.Log.InfoContext(ctx, "static pod stored", slog.String(string(telemetry.PodUID), uid), slog.String("file", f.path))
		delete(s.said, f.path)
		return false
	}
	if ctx.Err() == nil {
		s.tell(ctx, f.path, fmt.Errorf("%s: %w", f.path, err))
	}
	return fault.KindOf(err).Retryable() && !fault.Is(err, fault.ResourceExhausted)
}

// create stores a pod as the beginning of a trace of its own.
func (s *Source) create(ctx context.Context, f found) (err error) {
	ctx = telemetry.ContextWithAbout(ctx, telemetry.About{PodUID: string(f.pod.UID), Namespace: f.pod.Namespace, PodName: f.pod.Name})
	ctx, span := tracer.Start(ctx, "manifest.pod.create")
	defer func() { telemetry.End(span, err) }()
	_, err = s.pods.CreatePod(ctx, store.NewPod{
		Pod: f.pod.DeepCopy(), Source: podplanev1.Source_SOURCE_FILE, Origin: f.path, Traceparent: telemetry.Traceparent(ctx),
	})
	return err
}

// tell reports what is wrong with a file once, until it is something else.
func (s *Source) tell(ctx context.Context, path string, err error) {
	if s.said[path] == err.Error() {
		return
	}
	s.said[path] = err.Error()
	s.opts.Log.ErrorContext(ctx, "a manifest file does not count", slog.String("file", path), slog.Any("error", err))
	s.opts.Events.EventContext(ctx, events.Node(s.opts.Node.Name), events.Warning, "FailedValidation", "%s", err.Error())
}

// hold reports once why a pod is not stored yet.
func (s *Source) hold(ctx context.Context, f found, why string) {
	if s.said[f.path] == why {
		return
	}
	s.said[f.path] = why
	ref := events.Pod(f.pod.Namespace, f.pod.Name, string(f.pod.UID), "")
	s.opts.Events.EventContext(ctx, ref, events.Normal, "WaitingForDeletion", "%s: %s", f.path, why)
}
