package store

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/rawjson"
	"github.com/podplane/podplane/services/syncd/internal/watchcache"
)

type objectKey struct{ kind, namespace, name string }

func (k objectKey) bus() string { return bus.ObjectKey(k.namespace, k.kind, k.name) }

type objectEntry struct {
	rec *podplanev1.ObjectRecord
	rev uint64
}

// ConfigMap finds a ConfigMap. The caller may change what it gets.
func (s *Store) ConfigMap(namespace, name string) (*v1.ConfigMap, bool) {
	m := new(v1.ConfigMap)
	return m, s.decodeObject(objectKey{KindConfigMap, namespace, name}, m)
}

// Secret finds a Secret. The caller may change what it gets.
func (s *Store) Secret(namespace, name string) (*v1.Secret, bool) {
	m := new(v1.Secret)
	return m, s.decodeObject(objectKey{KindSecret, namespace, name}, m)
}

func (s *Store) decodeObject(k objectKey, into any) bool {
	s.mu.Lock()
	e := s.objectsBy[k]
	s.mu.Unlock()
	return e != nil && json.Unmarshal(e.rec.GetObject(), into) == nil
}

// SubscribeObjects calls fn with each change of a ConfigMap or Secret, under the rules of Subscribe.
func (s *Store) SubscribeObjects(fn func(ObjectChange)) (cancel func()) {
	s.order.Lock()
	defer s.order.Unlock()
	s.nextID++
	id := s.nextID
	s.objSub[id] = fn
	return func() {
		s.order.Lock()
		defer s.order.Unlock()
		delete(s.objSub, id)
	}
}

func (s *Store) table(kind string) *watchcache.Table {
	if kind == KindSecret {
		return s.secrets
	}
	return s.configMaps
}

// resource is the kind's name in Kubernetes' API.
func resource(kind string) string {
	if kind == KindSecret {
		return "secrets"
	}
	return "configmaps"
}

// CreateObject stores a ConfigMap or Secret; o is its complete JSON and meta its metadata.
func (s *Store) CreateObject(ctx context.Context, kind string, meta metav1.ObjectMeta, object []byte, dryRun bool) (*watchcache.Object, error) {
	k := objectKey{kind, meta.Namespace, meta.Name}
	_, unlock, err := s.beginObject(ctx, k)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if _, exists := s.table(kind).Get(k.namespace, k.name); exists {
		return nil, fault.For(fault.AlreadyExists, fault.Object{Resource: resource(kind), Name: k.name}, "")
	}
	rec := s.objectRecord(k, meta, object)
	if dryRun {
		return dry(configObject(rec)), nil
	}
	rev, err := create(ctx, s.objects, k.bus(), rec, s.opts.Patience)
	if fault.Is(err, fault.AlreadyExists) {
		return nil, fault.For(fault.AlreadyExists, fault.Object{Resource: resource(kind), Name: k.name}, "")
	}
	if err != nil {
		return nil, fmt.Errorf("store %s %s/%s: %w", kind, k.namespace, k.name, err)
	}
	s.applyObject(rec, rev)
	return s.presentObject(rec), nil
}

// UpdateObject replaces a ConfigMap or Secret by what change makes of its present JSON. What changes nothing is not stored and makes no
// new version.
func (s *Store) UpdateObject(ctx context.Context, kind, namespace, name string, pre Preconditions, dryRun bool,
	change func(current []byte) (metav1.ObjectMeta, []byte, error),
) (*watchcache.Object, error) {
	k := objectKey{kind, namespace, name}
	e, unlock, err := s.beginObject(ctx, k)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := s.checkObject(k, e, pre); err != nil {
		return nil, err
	}
	meta, object, err := change(e.rec.GetObject())
	if err != nil {
		return nil, err
	}
	if bytes.Equal(object, e.rec.GetObject()) {
		return s.presentObject(e.rec), nil
	}
	rec := proto.CloneOf(e.rec) // with the fields that only a newer Podplane knows
	rec.Schema, rec.Uid, rec.Object, rec.StoredAt = max(recordSchema, rec.GetSchema()), string(meta.UID), object, timestamppb.New(s.opts.Now())
	if dryRun {
		return dry(configObject(rec)), nil
	}
	rev, err := update(ctx, s.objects, k.bus(), rec, e.rev, s.opts.Patience)
	if fault.Is(err, fault.Conflict) {
		return nil, fault.For(fault.Conflict, fault.Object{Resource: resource(kind), Name: name}, "operation cannot be fulfilled on %s %q: %w", resource(kind), name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("store %s %s/%s: %w", kind, namespace, name, err)
	}
	s.applyObject(rec, rev)
	return s.presentObject(rec), nil
}

// DeleteObject deletes a ConfigMap or Secret at once and gives what it was.
func (s *Store) DeleteObject(ctx context.Context, kind, namespace, name string, pre Preconditions, dryRun bool) (*watchcache.Object, error) {
	k := objectKey{kind, namespace, name}
	e, unlock, err := s.beginObject(ctx, k)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := s.checkObject(k, e, pre); err != nil {
		return nil, err
	}
	last := s.presentObject(e.rec)
	if dryRun {
		return last, nil
	}
	if err := remove(ctx, s.objects, k.bus(), s.opts.Patience); err != nil {
		return nil, fmt.Errorf("delete %s %s/%s: %w", kind, namespace, name, err)
	}
	s.removeObject(k, 0)
	return last, nil
}

func (s *Store) beginObject(ctx context.Context, k objectKey) (*objectEntry, func(), error) {
	if err := s.WaitSynced(ctx); err != nil {
		return nil, nil, err
	}
	unlock, err := s.busy.lock(ctx, k.kind+"/"+k.namespace+"/"+k.name)
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objectsBy[k], unlock, nil
}

func (s *Store) checkObject(k objectKey, e *objectEntry, pre Preconditions) error {
	if e == nil {
		return fault.For(fault.NotFound, fault.Object{Resource: resource(k.kind), Name: k.name}, "")
	}
	return pre.check(resource(k.kind), s.presentObject(e.rec))
}

func (s *Store) presentObject(rec *podplanev1.ObjectRecord) *watchcache.Object {
	if o, ok := s.table(rec.GetKind()).Get(rec.GetNamespace(), rec.GetName()); ok {
		return o
	}
	return dry(configObject(rec))
}

func (s *Store) objectRecord(k objectKey, meta metav1.ObjectMeta, object []byte) *podplanev1.ObjectRecord {
	return &podplanev1.ObjectRecord{
		Schema: recordSchema, Kind: k.kind, Namespace: k.namespace, Name: k.name, Uid: string(meta.UID), Object: object,
		StoredAt: timestamppb.New(s.opts.Now()),
	}
}

func (s *Store) applyObject(rec *podplanev1.ObjectRecord, rev uint64) {
	k := objectKey{rec.GetKind(), rec.GetNamespace(), rec.GetName()}
	s.order.Lock()
	defer s.order.Unlock()
	s.mu.Lock()
	if old := s.objectsBy[k]; (old != nil && rev <= old.rev) || s.objGone.holds(k, rev, s.opts.Now()) {
		s.mu.Unlock()
		return
	}
	s.objectsBy[k] = &objectEntry{rec: rec, rev: rev}
	s.table(k.kind).Set(configObject(rec))
	s.mu.Unlock()
	s.publishObject(ObjectChange{Kind: k.kind, Namespace: k.namespace, Name: k.name})
}

func (s *Store) removeObject(k objectKey, rev uint64) {
	s.order.Lock()
	defer s.order.Unlock()
	s.mu.Lock()
	s.objGone.bury(k, rev, s.opts.Now())
	e := s.objectsBy[k]
	if e == nil || (rev != 0 && rev <= e.rev) {
		s.mu.Unlock()
		return
	}
	s.objGone.bury(k, e.rev, s.opts.Now())
	delete(s.objectsBy, k)
	s.table(k.kind).Delete(k.namespace, k.name)
	s.mu.Unlock()
	s.publishObject(ObjectChange{Kind: k.kind, Namespace: k.namespace, Name: k.name, Deleted: true})
}

func (s *Store) publishObject(c ObjectChange) {
	for _, fn := range s.objSub {
		fn(c)
	}
}

func configObject(rec *podplanev1.ObjectRecord) watchcache.Object {
	var brief struct {
		Metadata struct {
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
		Type string `json:"type"`
	}
	_ = json.Unmarshal(rec.GetObject(), &brief)
	fields := map[string]string{FieldName: rec.GetName(), FieldNamespace: rec.GetNamespace()}
	if rec.GetKind() == KindSecret {
		fields[FieldType] = brief.Type
	}
	return watchcache.Object{
		Namespace: rec.GetNamespace(), Name: rec.GetName(), UID: rec.GetUid(), Labels: brief.Metadata.Labels, Fields: fields,
		Size: len(rec.GetObject()),
		Render: func(o *watchcache.Object) ([]byte, error) {
			return rawjson.WithVersion(rec.GetObject(), o.ResourceVersion())
		},
	}
}

// FieldType is the field of a Secret's type.
const FieldType = "type"
