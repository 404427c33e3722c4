// Package eventlog is the view of all nodes' Kubernetes Events that the API lists and watches.
//
// It owns nothing on the bus: it reads the stream EVENTS and keeps, for each Event, the newest version that was published (publishers
// repeat an Event under its name with a growing count). Order is the stream's. The view is bounded by number and by age, the oldest go
// first; what the stream has dropped before this service read it is not seen. A new process reads the whole stream again.
package eventlog

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/services/syncd/internal/rawjson"
	"github.com/podplane/podplane/services/syncd/internal/watchcache"
)

// Bounds of the view.
const (
	MaxEvents = 1024
	MaxAge    = time.Hour

	pruneInterval = time.Minute
	retryDelay    = 500 * time.Millisecond
	patience      = 3 * time.Second
)

// NodeField is the field of an Event's node, which no field selector has.
const NodeField = "source.host"

// Stream is what the log needs of a bus.Stream.
type Stream interface {
	Read(ctx context.Context, from bus.ReadFrom, f func(context.Context, bus.Message) error) error
}

// Log is the view. Make one with New and run it.
type Log struct {
	stream Stream
	filter string
	log    *slog.Logger
	table  *watchcache.Table
	synced chan struct{}
	once   sync.Once

	mu    sync.Mutex
	kept  map[id]uint64 // to the sequence of the newest version
	order []dated       // by when they were last seen; entries that were seen again later stand there twice
}

type id struct{ namespace, name string }

type dated struct {
	id       id
	sequence uint64
	at       time.Time
}

// Open opens the stream and makes a log of the Events of every node. It waits for the bus as long as ctx.
func Open(ctx context.Context, c *bus.Conn, log *slog.Logger) (*Log, error) {
	s, err := bus.OpenStream(ctx, c, bus.Events)
	if err != nil {
		return nil, fmt.Errorf("open the stream of events: %w", err)
	}
	return New(s, bus.EventsEverywhere(""), log), nil
}

// New makes a log of what the stream has on the subjects of a pattern.
func New(s Stream, filter string, log *slog.Logger) *Log {
	return &Log{
		stream: s, filter: filter, log: log, table: watchcache.New(watchcache.Limits{HistoryBytes: 1 << 20}),
		synced: make(chan struct{}), kept: make(map[id]uint64),
	}
}

// Table is the view itself.
func (l *Log) Table() *watchcache.Table { return l.table }

// Fields are what Events can be selected by.
func (l *Log) Fields() []string {
	return []string{
		"metadata.name", "metadata.namespace", "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
		"involvedObject.fieldPath", "reason", "reportingComponent", "source", "type",
	}
}

// Ready waits until what was stored when this process began has been read.
func (l *Log) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-l.synced:
		return nil
	case <-ctx.Done():
		return fault.WithRetryAfter(fault.New(fault.Unavailable, "syncd has not read the stored events from the bus yet"), time.Second)
	}
}

// Run reads until ctx ends.
func (l *Log) Run(ctx context.Context) error {
	defer l.table.Close(fault.New(fault.Unavailable, "syncd is stopping"))
	ctx, cancel := context.WithCancel(ctx)
	pruned := make(chan struct{})
	go func() {
		defer close(pruned)
		l.prune(ctx)
	}()
	defer func() {
		cancel()
		<-pruned
	}()
	var last uint64
	read := func(_ context.Context, m bus.Message) error {
		last = m.Sequence
		l.apply(m)
		return nil
	}
	for {
		err := l.stream.Read(ctx, bus.ReadFrom{Sequence: last + 1, Filter: l.filter}, read)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return fmt.Errorf("read events: %w", ctx.Err())
		}
		l.log.WarnContext(ctx, "can't read the stored events yet", slog.Any("error", err))
		select {
		case <-time.After(retryDelay):
		case <-ctx.Done():
		}
	}
	l.once.Do(func() { close(l.synced) })
	return l.stream.Read(ctx, bus.ReadFrom{Sequence: last + 1, Filter: l.filter, Follow: true}, read)
}

func (l *Log) apply(m bus.Message) {
	var e v1.Event
	if err := json.Unmarshal(m.Data, &e); err != nil || e.Name == "" || e.Namespace == "" {
		l.log.Warn("an event on the bus can't be read", slog.String("subject", m.Subject), slog.Any("error", err))
		return
	}
	k := id{e.Namespace, e.Name}
	data := m.Data
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept[k] = m.Sequence
	l.order = append(l.order, dated{k, m.Sequence, m.Time})
	l.table.Set(watchcache.Object{
		Namespace: e.Namespace, Name: e.Name, UID: string(e.UID), Labels: e.Labels, Fields: fieldsOf(&e), Size: len(data),
		Render: func(o *watchcache.Object) ([]byte, error) { return rawjson.WithVersion(data, o.ResourceVersion()) },
	})
	l.trim(m.Time.Add(-MaxAge))
}

// trim drops what is beyond the bounds. mu is held.
func (l *Log) trim(oldest time.Time) {
	n := 0
	for ; n < len(l.order); n++ {
		d := l.order[n]
		if l.kept[d.id] == d.sequence {
			if len(l.kept) <= MaxEvents && d.at.After(oldest) {
				break
			}
			delete(l.kept, d.id)
			l.table.Delete(d.id.namespace, d.id.name)
		}
	}
	l.order = l.order[n:]
}

// prune drops what has become too old while nothing new came.
func (l *Log) prune(ctx context.Context) {
	t := time.NewTicker(pruneInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			l.mu.Lock()
			l.trim(now.Add(-MaxAge))
			l.mu.Unlock()
		}
	}
}

func fieldsOf(e *v1.Event) map[string]string {
	o := &e.InvolvedObject
	return map[string]string{
		"metadata.name": e.Name, "metadata.namespace": e.Namespace, "involvedObject.kind": o.Kind, "involvedObject.namespace": o.Namespace,
		"involvedObject.name": o.Name, "involvedObject.uid": string(o.UID), "involvedObject.fieldPath": o.FieldPath, "reason": e.Reason,
		"reportingComponent": e.ReportingController, "source": e.Source.Component, "type": e.Type, NodeField: e.Source.Host,
	}
}
