package bus

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/podplane/podplane/internal/fault"
)

// Metadata of each bucket's and stream's configuration.
const (
	metadataSchema    = "podplane.io/schema"
	metadataMinReader = "podplane.io/min-reader"
)

// versions are a schema and the oldest one that understands it. What says nothing is of the first.
type versions struct{ own, minReader int }

// readVersions gives the versions in a stream's metadata.
func readVersions(metadata map[string]string) versions {
	v := versions{1, 1}
	if n, err := strconv.Atoi(metadata[metadataSchema]); err == nil {
		v.own = max(n, 1)
	}
	if n, err := strconv.Atoi(metadata[metadataMinReader]); err == nil {
		v.minReader = max(n, 1)
	}
	return v
}

func (v versions) metadata() map[string]string {
	return map[string]string{metadataSchema: strconv.Itoa(v.own), metadataMinReader: strconv.Itoa(v.minReader)}
}

// withVersions puts the versions of want into metadata, whose other entries stay.
func withVersions(metadata, want map[string]string) map[string]string {
	next := maps.Clone(metadata)
	if next == nil {
		next = map[string]string{}
	}
	maps.Copy(next, readVersions(want).metadata())
	return next
}

// stamp says in a message's header who understands it.
func (v versions) stamp(h nats.Header) {
	h[HeaderSchema] = []string{strconv.Itoa(v.own)}
	if v.minReader > 1 {
		h[HeaderMinReader] = []string{strconv.Itoa(v.minReader)}
	}
}

// checkMessage refuses what only a newer one understands.
func (v versions) checkMessage(h nats.Header) error {
	values := h[HeaderMinReader]
	if len(values) == 0 {
		return nil
	}
	if least, err := strconv.Atoi(values[0]); err == nil && least <= v.own {
		return nil
	}
	return fault.New(fault.FailedPrecondition, "a record that %q has written needs a Podplane of schema %s at least; this one has schema %d: upgrade it", h.Get(HeaderWriter), values[0], v.own)
}

// checkStore refuses to work on records that only a newer one understands.
func (v versions) checkStore(s specInfo, metadata map[string]string) error {
	if has := readVersions(metadata); has.minReader > v.own {
		return fault.New(fault.FailedPrecondition, "%s %s has schema %d, which needs a Podplane of schema %d at least; this one has schema %d: start a newer one, or restore a backup of before the upgrade", s.kind, s.name, has.own, has.minReader, v.own)
	}
	return nil
}

// olderThan says whether a newer one has been at work.
func (v versions) olderThan(metadata map[string]string) bool {
	return readVersions(metadata).own > v.own
}

// mayRaise refuses to write what replicas that run now would not understand.
func (c *Conn) mayRaise(ctx context.Context, s specInfo, metadata map[string]string) error {
	if c.schema.minReader <= readVersions(metadata).minReader {
		return nil
	}
	list, err := Look(c, Services).List(ctx, ">")
	if err != nil && !fault.Is(err, fault.NotFound) {
		return fmt.Errorf("see who would not understand schema %d: %w", c.schema.own, err)
	}
	var old []string
	for _, e := range list {
		if r := e.Value; int(r.GetSchema()) < c.schema.minReader {
			old = append(old, fmt.Sprintf("%s/%s@%s (version %s)", r.GetService(), r.GetInstance(), r.GetNode(), r.GetVersion()))
		}
	}
	if len(old) > 0 {
		return fault.New(fault.FailedPrecondition, "%s %s can't be upgraded to schema %d while replicas run that do not understand it: stop %s", s.kind, s.name, c.schema.own, strings.Join(old, ", "))
	}
	return nil
}
