package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/watchcache"
)

func TestCreateRefuses(t *testing.T) {
	s := start(t, watchcache.Limits{})
	for _, c := range []struct {
		name, body, namespace string
		kind                  fault.Kind
		words                 string
	}{
		{"unknown field", `{"metadata":{"name":"a"},"spec":{"containers":[{"name":"a","image":"b","imagee":"c"}]}}`, "default", fault.Invalid, "spec.containers[0].imagee"},
		{"no image", `{"metadata":{"name":"a"},"spec":{"containers":[{"name":"a"}]}}`, "default", fault.Invalid, "spec.containers[0].image: Required value"},
		{"namespace", `{"metadata":{"name":"a","namespace":"other"},"spec":{"containers":[{"name":"a","image":"b"}]}}`, "default", fault.Invalid, "metadata.namespace"},
		{"node", `{"metadata":{"name":"a"},"spec":{"nodeName":"other","containers":[{"name":"a","image":"b"}]}}`, "default", fault.Invalid, "there is no such node; there are node-1"},
		{"no name", `{"metadata":{},"spec":{"containers":[{"name":"a","image":"b"}]}}`, "default", fault.Invalid, "name or generateName is required"},
		{"version", `{"metadata":{"name":"a","resourceVersion":"7"},"spec":{"containers":[{"name":"a","image":"b"}]}}`, "default", fault.BadRequest, "resourceVersion"},
		{"affinity", `{"metadata":{"name":"a"},"spec":{"nodeSelector":{"disk":"hdd"},"containers":[{"name":"a","image":"b"}]}}`, "default", fault.Invalid, "NodeAffinity"},
		{"syntax", `{`, "default", fault.BadRequest, "not JSON"},
	} {
		_, err := s.pods.CreatePod(t.Context(), &podplanev1.CreateRequest{Namespace: c.namespace, Body: &httpbody.HttpBody{ContentType: "application/json", Data: []byte(c.body)}})
		if err = fault.FromGRPC(err); !fault.Is(err, c.kind) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: got %v: %v", c.name, fault.KindOf(err), err)
		}
	}
	if l, err := s.list(&podplanev1.ListRequest{}); err != nil || len(l.Items) != 0 {
		t.Errorf("stored: %v, %v", l, err)
	}
}

func TestCreateWhatFits(t *testing.T) {
	s := start(t, watchcache.Limits{})
	port := `"containers":[{"name":"a","image":"b:1","ports":[{"containerPort":80,"hostPort":8080}]}]`
	first := s.mustCreate("first", port)
	if _, err := s.create("second", port); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "host port 8080/TCP is in use by pod default/first") {
		t.Errorf("a taken port: got %v", err)
	}
	s.store.ApplyStatus(&podplanev1.StatusRecord{Node: node, Uid: string(first.UID), Phase: podplanev1.WorkerPhase_WORKER_PHASE_TERMINATED}, 1)
	s.mustCreate("second", port)
	for _, name := range []string{"p3", "p4", "p5", "p6"} {
		s.mustCreate(name)
	}
	if _, err := s.create("p7"); !fault.Is(err, fault.ResourceExhausted) || !strings.Contains(err.Error(), "pods, requested: 1, used: 5, capacity: 5") {
		t.Errorf("a full node: got %v", err)
	}
}

func TestOnlyOneOfManyGetsAName(t *testing.T) {
	s := start(t, watchcache.Limits{})
	const n = 8
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { _, errs[i] = s.create("web") })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		switch {
		case err == nil:
			won++
		case !fault.Is(err, fault.AlreadyExists):
			t.Error(err)
		}
	}
	if won != 1 {
		t.Errorf("%d won", won)
	}
}

func TestGenerateNameAndDryRun(t *testing.T) {
	s := start(t, watchcache.Limits{})
	b := &httpbody.HttpBody{ContentType: "application/yaml", Data: []byte("kind: Pod\nmetadata: {generateName: web-}\nspec: {containers: [{name: a, image: b}]}\n")}
	got, err := s.pods.CreatePod(t.Context(), &podplanev1.CreateRequest{Namespace: "default", Body: b, DryRun: []string{"All"}})
	if err != nil {
		t.Fatal(err)
	}
	if pod := decodeTo[v1.Pod](t, got.GetData()); !regexp.MustCompile(`^web-[a-z0-9]{5}$`).MatchString(pod.Name) || pod.Spec.Containers[0].ImagePullPolicy != v1.PullAlways {
		t.Errorf("got %+v", pod)
	}
	if l, err := s.list(&podplanev1.ListRequest{}); err != nil || len(l.Items) != 0 {
		t.Errorf("a dry run stored %v, %v", l, err)
	}
	if _, err := s.pods.CreatePod(t.Context(), &podplanev1.CreateRequest{Namespace: "default", Body: b, DryRun: []string{"Some"}}); !fault.Is(fault.FromGRPC(err), fault.BadRequest) {
		t.Errorf("got %v", err)
	}
	s.mustCreate("real")
	if gone, err := s.delete(&podplanev1.DeleteRequest{Name: "real", DryRun: []string{"All"}}); err != nil || gone.DeletionTimestamp == nil {
		t.Errorf("got %v, %v", gone, err)
	}
	if still, err := s.get("real"); err != nil || still.DeletionTimestamp != nil {
		t.Errorf("a dry run deleted: %v, %v", still, err)
	}
}

func TestReplaceRefusesOtherFields(t *testing.T) {
	s := start(t, watchcache.Limits{})
	pod := s.mustCreate("web")
	change := func(f func(*v1.Pod)) error {
		p := pod.DeepCopy()
		f(p)
		_, err := s.replace(p)
		return err
	}
	err := change(func(p *v1.Pod) { p.Spec.Containers[0].Command = []string{"x"} })
	if f := fault.Fields(err); !fault.Is(err, fault.Invalid) || len(f) != 1 || f[0].Path != "spec.containers[0].command" || !strings.Contains(f[0].Detail, "may not change fields other than") {
		t.Errorf("command: got %v", err)
	}
	if err := change(func(p *v1.Pod) { p.UID = "other" }); !fault.Is(err, fault.Conflict) {
		t.Errorf("uid: got %v", err)
	}
	if err := change(func(p *v1.Pod) { p.Name = "missing" }); !fault.Is(err, fault.NotFound) {
		t.Errorf("name: got %v", err)
	}
	if same, err := s.replace(pod); err != nil || same.Generation != 1 || same.ResourceVersion != pod.ResourceVersion {
		t.Errorf("no change: got %v, %v", same, err)
	}
}

func TestDeleteWithPreconditionsAndInNumbers(t *testing.T) {
	s := start(t, watchcache.Limits{})
	for _, name := range []string{"a", "b", "c"} {
		s.mustCreate(name)
	}
	wrong := &httpbody.HttpBody{ContentType: "application/json", Data: []byte(`{"preconditions":{"uid":"no"}}`)}
	if _, err := s.delete(&podplanev1.DeleteRequest{Name: "a", Body: wrong}); !fault.Is(err, fault.Conflict) {
		t.Errorf("wrong uid: got %v", err)
	}
	if _, err := s.delete(&podplanev1.DeleteRequest{Name: "none"}); !fault.Is(err, fault.NotFound) {
		t.Errorf("none: got %v", err)
	}
	out, err := s.pods.DeletePods(t.Context(), &podplanev1.DeleteCollectionRequest{Namespace: "default", LabelSelector: "app in (a,c)"})
	if err != nil {
		t.Fatal(err)
	}
	if l := decodeTo[v1.PodList](t, out.GetData()); len(l.Items) != 2 || l.Items[0].DeletionTimestamp == nil {
		t.Errorf("got %+v", l)
	}
	if b, err := s.get("b"); err != nil || b.DeletionTimestamp != nil {
		t.Errorf("the other one: %v, %v", b, err)
	}
}

func TestConfigObjects(t *testing.T) {
	s := start(t, watchcache.Limits{})
	ctx := t.Context()
	body := func(v any) *httpbody.HttpBody {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return &httpbody.HttpBody{ContentType: "application/json", Data: data}
	}
	m := &v1.ConfigMap{Data: map[string]string{"k": "v"}}
	m.Name = "conf"
	out, err := s.maps.CreateConfigMap(ctx, &podplanev1.CreateRequest{Namespace: "ns", Body: body(m)})
	if err != nil {
		t.Fatal(err)
	}
	stored := decodeTo[v1.ConfigMap](t, out.GetData())
	if stored.UID == "" || stored.Namespace != "ns" || stored.Kind != "ConfigMap" {
		t.Errorf("got %+v", stored)
	}
	if _, err := s.maps.CreateConfigMap(ctx, &podplanev1.CreateRequest{Namespace: "ns", Body: body(m)}); !fault.Is(fault.FromGRPC(err), fault.AlreadyExists) {
		t.Errorf("twice: got %v", err)
	}
	if found, ok := s.store.ConfigMap("ns", "conf"); !ok || found.Data["k"] != "v" {
		t.Errorf("read back: %v, %v", found, ok)
	}
	if out, err = s.maps.ReplaceConfigMap(ctx, &podplanev1.ReplaceRequest{Namespace: "ns", Name: "conf", Body: body(stored)}); err != nil {
		t.Fatal(err)
	}
	if same := decodeTo[v1.ConfigMap](t, out.GetData()); same.ResourceVersion != stored.ResourceVersion {
		t.Errorf("no change: version %s, was %s", same.ResourceVersion, stored.ResourceVersion)
	}
	stored.Data["k"] = "w"
	if out, err = s.maps.ReplaceConfigMap(ctx, &podplanev1.ReplaceRequest{Namespace: "ns", Name: "conf", Body: body(stored)}); err != nil {
		t.Fatal(err)
	}
	if next := decodeTo[v1.ConfigMap](t, out.GetData()); next.Data["k"] != "w" || next.UID != stored.UID {
		t.Errorf("got %+v", next)
	}
	if _, err = s.maps.ReplaceConfigMap(ctx, &podplanev1.ReplaceRequest{Namespace: "ns", Name: "conf", Body: body(stored)}); !fault.Is(fault.FromGRPC(err), fault.Conflict) {
		t.Errorf("an old version: got %v", err)
	}
	if _, err := s.maps.DeleteConfigMap(ctx, &podplanev1.DeleteRequest{Namespace: "ns", Name: "conf"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.maps.GetConfigMap(ctx, &podplanev1.GetRequest{Namespace: "ns", Name: "conf"}); !fault.Is(fault.FromGRPC(err), fault.NotFound) {
		t.Errorf("after the deletion: got %v", err)
	}
	if _, err := s.maps.CreateConfigMap(ctx, &podplanev1.CreateRequest{Namespace: "ns", Body: body(m)}); err != nil {
		t.Errorf("again under the same name: %v", err)
	}

	sec := &v1.Secret{StringData: map[string]string{"password": "hunter2"}}
	sec.Name = "conf"
	if out, err = s.secrets.CreateSecret(ctx, &podplanev1.CreateRequest{Namespace: "ns", Body: body(sec)}); err != nil {
		t.Fatal(err)
	}
	if got := decodeTo[v1.Secret](t, out.GetData()); string(got.Data["password"]) != "hunter2" || got.StringData != nil || got.Type != v1.SecretTypeOpaque {
		t.Errorf("got %+v", got)
	}
}

// TestObjectsInNumbers lists config objects and deletes those that a selector finds.
func TestObjectsInNumbers(t *testing.T) {
	s := start(t, watchcache.Limits{})
	ctx := t.Context()
	for _, name := range []string{"a", "b", "c"} {
		label := map[string]string{"a": "go", "b": "stay", "c": "go"}[name]
		for kind, create := range map[string]func(context.Context, *podplanev1.CreateRequest, ...grpc.CallOption) (*httpbody.HttpBody, error){
			"ConfigMap": s.maps.CreateConfigMap, "Secret": s.secrets.CreateSecret,
		} {
			body := `{"kind":"` + kind + `","apiVersion":"v1","metadata":{"name":"` + name + `","labels":{"then":"` + label + `"}}}`
			if _, err := create(ctx, &podplanev1.CreateRequest{Namespace: "ns", Body: &httpbody.HttpBody{ContentType: "application/json", Data: []byte(body)}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	req := &podplanev1.DeleteCollectionRequest{Namespace: "ns", LabelSelector: "then=go"}
	if out, err := s.maps.DeleteConfigMaps(ctx, req); err != nil || len(decodeTo[v1.ConfigMapList](t, out.GetData()).Items) != 2 {
		t.Errorf("deleted %s, %v", out.GetData(), err)
	}
	if out, err := s.secrets.DeleteSecrets(ctx, req); err != nil || len(decodeTo[v1.SecretList](t, out.GetData()).Items) != 2 {
		t.Errorf("deleted %v", err)
	}
	all := func(stream grpc.ServerStreamingClient[httpbody.HttpBody], err error) (names []string) {
		t.Helper()
		var data []byte
		for err == nil {
			var b *httpbody.HttpBody
			if b, err = stream.Recv(); err == nil {
				data = append(data, b.GetData()...)
			}
		}
		if !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		for _, m := range decodeTo[metav1.PartialObjectMetadataList](t, data).Items {
			names = append(names, m.Name)
		}
		return names
	}
	if got := all(s.maps.ListConfigMaps(ctx, &podplanev1.ListRequest{Namespace: "ns"})); !slices.Equal(got, []string{"b"}) {
		t.Errorf("ConfigMaps left: %v", got)
	}
	if got := all(s.secrets.ListSecrets(ctx, &podplanev1.ListRequest{Namespace: "ns"})); !slices.Equal(got, []string{"b"}) {
		t.Errorf("Secrets left: %v", got)
	}
}
