package bus

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/podplane/podplane/internal/fault"
)

const (
	minEnsureDelay = 20 * time.Millisecond
	maxEnsureDelay = 500 * time.Millisecond
)

// ensure makes sure that the bucket or stream exists: its owner creates or
// upgrades it, others wait for it.
func (c *Conn) ensure(ctx context.Context, s specInfo) error {
	s = c.adjust(s)
	owner := c.owns(s)
	if owner {
		c.mu.Lock()
		c.owned[s.stream] = s
		c.mu.Unlock()
	}
	told := false
	for delay := minEnsureDelay; ; delay = min(2*delay, maxEnsureDelay) {
		last := c.ensureOnce(ctx, s, owner)
		if last == nil {
			return nil
		}
		if delay == maxEnsureDelay && !told {
			told = true
			c.log.Info("bus "+s.kind+" waits for "+waitedFor(s, last), "bus."+s.kind, s.name, "error", last)
		}
		if k := fault.KindOf(last); k != fault.Unavailable && k != fault.NotFound {
			return fmt.Errorf("open %s %s: %w", s.kind, s.name, last)
		}
		if err := c.sleep(ctx, delay); err != nil {
			return fault.New(fault.Unavailable, "open %s %s: waited for %s: %w (%w)", s.kind, s.name, waitedFor(s, last), last, err)
		}
	}
}

func waitedFor(s specInfo, err error) string {
	if fault.Is(err, fault.NotFound) {
		return strings.Join(s.owners, " or ") + " to create it"
	}
	return "the bus"
}

func (c *Conn) ensureOnce(ctx context.Context, s specInfo, owner bool) error {
	have, err := c.streamInfo(ctx, s.stream)
	switch {
	case fault.Is(err, fault.NotFound) && owner:
		err = c.call(ctx, apiStreamCreate+s.stream, s.config, nil)
		if isCode(err, codeStreamNameInUse) { // another replica was quicker: look again
			return unavailable(err)
		}
		return err
	case err != nil:
		return err
	}
	if err := c.schema.checkStore(s, have.Config.Metadata); err != nil {
		return err
	}
	// What a newer one has declared stays: an older one that is started beside it, or by mistake, undoes nothing.
	if !owner || c.schema.olderThan(have.Config.Metadata) || !differs(have.Config, s.config) {
		return nil
	}
	if err := c.mayRaise(ctx, s, have.Config.Metadata); err != nil {
		return err
	}
	// Only what we declare is changed: a storage type or an operator's own additions stay.
	next := have.Config
	merge(&next, s.config)
	if err := c.call(ctx, apiStreamUpdate+s.stream, next, nil); err != nil {
		return fmt.Errorf("upgrade: %w", err)
	}
	c.log.Info("bus "+s.kind+" upgraded", "bus."+s.kind, s.name)
	return nil
}

func (c *Conn) owns(s specInfo) bool {
	return c.cfg.Service == "" || slices.Contains(s.owners, c.cfg.Service)
}

// adjust applies this connection's configuration.
func (c *Conn) adjust(s specInfo) specInfo {
	s.config.Replicas = max(c.cfg.Replicas, 1)
	s.config.Metadata = c.schema.metadata()
	if l, ok := c.cfg.StreamLimits[s.stream]; ok {
		if l.MaxAge > 0 {
			s.config.MaxAge = l.MaxAge
			s.config.Duplicates = min(s.config.Duplicates, l.MaxAge)
		}
		if l.MaxBytes > 0 {
			s.config.MaxBytes = l.MaxBytes
		}
	}
	return s
}

func differs(have, want jetstream.StreamConfig) bool {
	next := have
	merge(&next, want)
	return next.Description != have.Description || !slices.Equal(next.Subjects, have.Subjects) ||
		next.MaxMsgsPerSubject != have.MaxMsgsPerSubject || next.MaxBytes != have.MaxBytes ||
		next.MaxMsgSize != have.MaxMsgSize || next.MaxAge != have.MaxAge || next.MaxMsgs != have.MaxMsgs ||
		next.Replicas != have.Replicas || next.Duplicates != have.Duplicates || next.AllowMsgTTL != have.AllowMsgTTL ||
		next.AllowRollup != have.AllowRollup || next.SubjectDeleteMarkerTTL != have.SubjectDeleteMarkerTTL ||
		next.Discard != have.Discard || readVersions(next.Metadata) != readVersions(have.Metadata)
}

// merge copies what we declare into cfg.
func merge(cfg *jetstream.StreamConfig, want jetstream.StreamConfig) {
	cfg.Description, cfg.Subjects = want.Description, want.Subjects
	cfg.MaxMsgsPerSubject, cfg.MaxBytes, cfg.MaxMsgSize = want.MaxMsgsPerSubject, want.MaxBytes, want.MaxMsgSize
	cfg.MaxAge, cfg.MaxMsgs, cfg.Replicas, cfg.Duplicates = want.MaxAge, want.MaxMsgs, want.Replicas, want.Duplicates
	cfg.AllowRollup, cfg.SubjectDeleteMarkerTTL, cfg.Discard = want.AllowRollup, want.SubjectDeleteMarkerTTL, want.Discard
	cfg.Metadata = withVersions(cfg.Metadata, want.Metadata)
	cfg.AllowMsgTTL = cfg.AllowMsgTTL || want.AllowMsgTTL // can't be taken back
}

// restoreOwned creates again, after each reconnect, what a server came back
// without: streams in memory, or everything when its directory was lost.
func (c *Conn) restoreOwned(connected bool) {
	c.mu.Lock()
	if !connected || c.closed || len(c.owned) == 0 {
		c.mu.Unlock()
		return
	}
	specs := make([]specInfo, 0, len(c.owned))
	for _, s := range c.owned {
		specs = append(specs, s)
	}
	lost := c.down
	c.tasks.Add(1)
	c.mu.Unlock()
	go func() {
		defer c.tasks.Done()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		ended := make(chan struct{})
		defer close(ended)
		c.tasks.Go(func() {
			select {
			case <-lost:
				cancel()
			case <-ended:
			}
		})
		for _, s := range specs {
			if err := c.restore(ctx, s); err != nil && ctx.Err() == nil {
				c.log.Error("bus "+s.kind+" can't be restored", "bus."+s.kind, s.name, "error", err)
			}
		}
	}()
}

func (c *Conn) restore(ctx context.Context, s specInfo) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for delay := minEnsureDelay; ; delay = min(2*delay, maxEnsureDelay) {
		err := c.ensureOnce(ctx, s, true)
		if !fault.Is(err, fault.Unavailable) {
			return err
		}
		if c.sleep(ctx, delay) != nil {
			return err
		}
	}
}
