package manifest

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/podplane/podplane/internal/events"
)

// What is wrong is told once, until it is something else.

// once says whether something has to be told about a place.
func (s *Source) once(place, text string) bool {
	if s.said[place] == text {
		return false
	}
	s.said[place] = text
	return true
}

// tell reports a manifest that is none.
func (s *Source) tell(ctx context.Context, place string, err error) {
	if !s.once(place, err.Error()) {
		return
	}
	s.opts.Log.ErrorContext(ctx, "a manifest does not count", slog.String("manifest", place), slog.Any("error", err))
	s.opts.Events.EventContext(ctx, events.Node(s.opts.Node.Name), events.Warning, "FailedValidation", "%s", err.Error())
}

// tellRemote reports how the URL is, when that is new: errors that mean the same are one.
func (s *Source) tellRemote(ctx context.Context, f fetched) {
	place := s.remote.from.Path
	if f.err != nil {
		if s.once(place, f.kind) {
			s.opts.Log.ErrorContext(ctx, "the manifests of a URL can't be had; what it said last stays", slog.String("manifest", place), slog.Any("error", f.err))
			s.opts.Events.EventContext(ctx, events.Node(s.opts.Node.Name), events.Warning, "FailedManifestURL", "%s; what it said last stays", f.err.Error())
		}
		return
	}
	if _, was := s.said[place]; was {
		delete(s.said, place)
		s.opts.Log.InfoContext(ctx, "the manifests of a URL can be had again", slog.String("manifest", place))
	}
}

// refuse reports a pod that can't be stored as things are.
func (s *Source) refuse(ctx context.Context, w *wish, why string) {
	if !s.once(w.place, why) {
		return
	}
	s.opts.Log.ErrorContext(ctx, "the pod of a manifest is not stored", slog.String("manifest", w.place), slog.String("pod", w.name()), slog.String("error", why))
	s.event(ctx, w, events.Warning, "FailedValidation", why)
}

// hold reports why a pod is not stored yet.
func (s *Source) hold(ctx context.Context, w *wish, why string) {
	if s.once(w.place, why) {
		s.event(ctx, w, events.Normal, "WaitingForDeletion", why)
	}
}

func (s *Source) event(ctx context.Context, w *wish, eventType, reason, why string) {
	ref := events.Pod(w.pod.Namespace, w.pod.Name, string(w.pod.UID), "")
	s.opts.Events.EventContext(ctx, ref, eventType, reason, "%s", fmt.Sprintf("%s: %s", w.place, why))
}
