package api

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/api/httpbody"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/admission"
	"github.com/podplane/podplane/services/syncd/internal/decode"
	"github.com/podplane/podplane/services/syncd/internal/store"
	"github.com/podplane/podplane/services/syncd/internal/watchcache"
)

// configs serves one kind of config object, T being a pointer to its type.
type configs[T metav1.Object] struct {
	resource
	store *store.Store
	// stored is the kind in the store.
	stored string
	decode func(decode.Input) (T, error)
	admit  func(o, old T, namespace string) error
	// typed sets the object's kind and apiVersion.
	typed func(T)
	empty func() T
}

func (c *configs[T]) create(ctx context.Context, req *podplanev1.CreateRequest) (*httpbody.HttpBody, error) {
	dryRun, err := dry(req.GetDryRun())
	if err != nil {
		return nil, err
	}
	if req.GetNode() != "" {
		return nil, fault.New(fault.BadRequest, "node: %s are on no node", c.plural)
	}
	o, err := c.decode(input(req.GetBody()))
	if err != nil {
		return nil, err
	}
	if o.GetResourceVersion() != "" {
		return nil, fault.New(fault.BadRequest, "metadata.resourceVersion must not be set on objects to be created")
	}
	if o.GetName() == "" && o.GetGenerateName() != "" {
		o.SetName(generate(o.GetGenerateName()))
	}
	var none T
	if err := c.admit(o, none, req.GetNamespace()); err != nil {
		return nil, err
	}
	o.SetUID(types.UID(uuid.NewString()))
	o.SetCreationTimestamp(metav1.NewTime(time.Now()).Rfc3339Copy())
	meta, data, err := c.encode(o)
	if err != nil {
		return nil, err
	}
	stored, err := c.store.CreateObject(ctx, c.stored, meta, data, dryRun)
	if err != nil {
		return nil, err
	}
	return body(stored)
}

func (c *configs[T]) replace(ctx context.Context, req *podplanev1.ReplaceRequest) (*httpbody.HttpBody, error) {
	dryRun, err := dry(req.GetDryRun())
	if err != nil {
		return nil, err
	}
	o, err := c.decode(input(req.GetBody()))
	if err != nil {
		return nil, err
	}
	if o.GetName() != req.GetName() {
		return nil, fault.New(fault.BadRequest, "metadata.name must be the name of the request, %q", req.GetName())
	}
	pre := preconditionsOf(o)
	stored, err := c.store.UpdateObject(ctx, c.stored, req.GetNamespace(), req.GetName(), pre, dryRun, func(current []byte) (metav1.ObjectMeta, []byte, error) {
		old := c.empty()
		if err := json.Unmarshal(current, old); err != nil {
			return metav1.ObjectMeta{}, nil, fmt.Errorf("stored %s: %w", c.stored, err)
		}
		if err := c.admit(o, old, req.GetNamespace()); err != nil {
			return metav1.ObjectMeta{}, nil, err
		}
		return c.encode(o)
	})
	if err != nil {
		return nil, err
	}
	return body(stored)
}

func (c *configs[T]) encode(o T) (metav1.ObjectMeta, []byte, error) {
	c.typed(o)
	o.SetResourceVersion("")
	data, err := json.Marshal(o)
	if err != nil {
		return metav1.ObjectMeta{}, nil, fmt.Errorf("encode %s: %w", c.stored, err)
	}
	return metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID()}, data, nil
}

func (c *configs[T]) remove(ctx context.Context, req *podplanev1.DeleteRequest) (*httpbody.HttpBody, error) {
	opts, err := deleteOptions(req.GetBody(), req.GracePeriodSeconds, req.GetDryRun())
	if err != nil {
		return nil, err
	}
	o, err := c.store.DeleteObject(ctx, c.stored, req.GetNamespace(), req.GetName(), opts.Preconditions, opts.DryRun)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess,
		Details: &metav1.StatusDetails{Name: o.Name, Kind: c.plural, UID: types.UID(o.UID)},
	})
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	return &httpbody.HttpBody{ContentType: jsonType, Data: data}, nil
}

func (c *configs[T]) removeAll(ctx context.Context, req *podplanev1.DeleteCollectionRequest) (*httpbody.HttpBody, error) {
	opts, err := deleteOptions(req.GetBody(), req.GracePeriodSeconds, req.GetDryRun())
	if err != nil {
		return nil, err
	}
	return c.deleteAll(ctx, req, func(o *watchcache.Object) (*watchcache.Object, error) {
		pre := opts.Preconditions
		pre.UID = &o.UID
		return c.store.DeleteObject(ctx, c.stored, o.Namespace, o.Name, pre, opts.DryRun)
	})
}

type configMaps struct {
	podplanev1.UnimplementedConfigMapServiceServer
	configs[*v1.ConfigMap]
}

func newConfigMaps(s *store.Store) *configMaps {
	return &configMaps{configs: configs[*v1.ConfigMap]{
		resource: resource{
			kind: "ConfigMap", plural: "configmaps", table: s.ConfigMaps(), ready: s.WaitSynced,
			fields: []string{store.FieldName, store.FieldNamespace},
		},
		store: s, stored: store.KindConfigMap, decode: decode.ConfigMap, admit: admission.ConfigMap,
		typed: func(m *v1.ConfigMap) { m.TypeMeta = metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"} },
		empty: func() *v1.ConfigMap { return new(v1.ConfigMap) },
	}}
}

func (c *configMaps) ListConfigMaps(req *podplanev1.ListRequest, stream bodyStream) error {
	return c.serve(req, stream)
}

func (c *configMaps) GetConfigMap(ctx context.Context, req *podplanev1.GetRequest) (*httpbody.HttpBody, error) {
	return c.get(ctx, req.GetNamespace(), req.GetName())
}

func (c *configMaps) CreateConfigMap(ctx context.Context, req *podplanev1.CreateRequest) (*httpbody.HttpBody, error) {
	return c.create(ctx, req)
}

func (c *configMaps) ReplaceConfigMap(ctx context.Context, req *podplanev1.ReplaceRequest) (*httpbody.HttpBody, error) {
	return c.replace(ctx, req)
}

func (c *configMaps) DeleteConfigMap(ctx context.Context, req *podplanev1.DeleteRequest) (*httpbody.HttpBody, error) {
	return c.remove(ctx, req)
}

func (c *configMaps) DeleteConfigMaps(ctx context.Context, req *podplanev1.DeleteCollectionRequest) (*httpbody.HttpBody, error) {
	return c.removeAll(ctx, req)
}

type secrets struct {
	podplanev1.UnimplementedSecretServiceServer
	configs[*v1.Secret]
}

func newSecrets(s *store.Store) *secrets {
	return &secrets{configs: configs[*v1.Secret]{
		resource: resource{
			kind: "Secret", plural: "secrets", table: s.Secrets(), ready: s.WaitSynced,
			fields: []string{store.FieldName, store.FieldNamespace, store.FieldType},
		},
		store: s, stored: store.KindSecret, decode: decode.Secret, admit: admission.Secret,
		typed: func(m *v1.Secret) { m.TypeMeta = metav1.TypeMeta{Kind: "Secret", APIVersion: "v1"} },
		empty: func() *v1.Secret { return new(v1.Secret) },
	}}
}

func (s *secrets) ListSecrets(req *podplanev1.ListRequest, stream bodyStream) error {
	return s.serve(req, stream)
}

func (s *secrets) GetSecret(ctx context.Context, req *podplanev1.GetRequest) (*httpbody.HttpBody, error) {
	return s.get(ctx, req.GetNamespace(), req.GetName())
}

func (s *secrets) CreateSecret(ctx context.Context, req *podplanev1.CreateRequest) (*httpbody.HttpBody, error) {
	return s.create(ctx, req)
}

func (s *secrets) ReplaceSecret(ctx context.Context, req *podplanev1.ReplaceRequest) (*httpbody.HttpBody, error) {
	return s.replace(ctx, req)
}

func (s *secrets) DeleteSecret(ctx context.Context, req *podplanev1.DeleteRequest) (*httpbody.HttpBody, error) {
	return s.remove(ctx, req)
}

func (s *secrets) DeleteSecrets(ctx context.Context, req *podplanev1.DeleteCollectionRequest) (*httpbody.HttpBody, error) {
	return s.removeAll(ctx, req)
}
