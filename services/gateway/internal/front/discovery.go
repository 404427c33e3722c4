package front

import (
	"encoding/json"
	"net/http"
	"runtime"

	"github.com/go-chi/chi/v5"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
)

// The version of the Kubernetes API whose forms are spoken here.
const (
	kubernetesMajor = "1"
	kubernetesMinor = "36"
)

// addDiscovery serves the documents by which kubectl finds out what there is. They never change.
func addDiscovery(r chi.Router, podplane string) {
	document(r, "/version", version.Info{
		Major: kubernetesMajor, Minor: kubernetesMinor, GitVersion: "v" + kubernetesMajor + "." + kubernetesMinor + ".0+podplane." + podplane,
		GoVersion: runtime.Version(), Compiler: runtime.Compiler, Platform: runtime.GOOS + "/" + runtime.GOARCH,
	})
	document(r, "/api", metav1.APIVersions{
		TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}, ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{},
	})
	document(r, "/apis", metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{}})
	document(r, "/api/v1", metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "v1", APIResources: resources(),
	})
}

func resources() []metav1.APIResource {
	read := metav1.Verbs{"get", "list", "watch"}
	all := metav1.Verbs{"create", "delete", "deletecollection", "get", "list", "update", "watch"}
	return []metav1.APIResource{
		{Name: "configmaps", SingularName: "configmap", Namespaced: true, Kind: "ConfigMap", Verbs: all, ShortNames: []string{"cm"}},
		{Name: "events", SingularName: "event", Namespaced: true, Kind: "Event", Verbs: read, ShortNames: []string{"ev"}},
		{Name: "nodes", SingularName: "node", Kind: "Node", Verbs: read, ShortNames: []string{"no"}},
		{Name: "pods", SingularName: "pod", Namespaced: true, Kind: "Pod", Verbs: all, ShortNames: []string{"po"}, Categories: []string{"all"}},
		{Name: "pods/ephemeralcontainers", Namespaced: true, Kind: "Pod", Verbs: metav1.Verbs{"get", "update"}},
		{Name: "pods/log", Namespaced: true, Kind: "Pod", Verbs: metav1.Verbs{"get"}},
		{Name: "pods/resize", Namespaced: true, Kind: "Pod", Verbs: metav1.Verbs{"get", "update"}},
		{Name: "pods/status", Namespaced: true, Kind: "Pod", Verbs: metav1.Verbs{"get", "update"}},
		{Name: "secrets", SingularName: "secret", Namespaced: true, Kind: "Secret", Verbs: all},
	}
}

// document serves one fixed document. What can't be encoded would be a defect that the first test finds.
func document(r chi.Router, path string, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	body = append(body, '\n')
	r.Get(path, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", jsonType)
		_, _ = w.Write(body) // a client that is gone needs no answer
	})
}
