package up

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestPodsOfManifestsEndByThemselves: the API refuses to delete them, and down must wait for them all the same.
func TestPodsOfManifestsEndByThemselves(t *testing.T) {
	lists := []string{
		`{"items":[{"metadata":{"namespace":"a","name":"static","uid":"1","annotations":{"kubernetes.io/config.source":"file"}}},{"metadata":{"namespace":"a","name":"api","uid":"2"}}]}`,
		`{"items":[{"metadata":{"namespace":"a","name":"static","uid":"1","annotations":{"kubernetes.io/config.source":"file"}}}]}`,
		`{"items":[]}`,
	}
	var deleted []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			deleted = append(deleted, r.URL.Path)
			if strings.HasSuffix(r.URL.Path, "/static") {
				w.WriteHeader(http.StatusForbidden)
			}
			_, _ = io.WriteString(w, "{}")
			return
		}
		_, _ = io.WriteString(w, lists[0])
		lists = lists[1:]
	}))
	defer server.Close()
	s := &stack{cfg: Config{Listen: strings.TrimPrefix(server.URL, "http://")}}
	if n, err := s.deleteAll(t.Context()); err != nil || n != 2 || len(deleted) != 2 {
		t.Errorf("deleteAll = %d, %v; deleted %v", n, err, deleted)
	}
	lists = []string{`{"items":[{"metadata":{"namespace":"a","name":"static","uid":"1"}}]}`}
	if _, err := s.deleteAll(t.Context()); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("a refusal for another reason: %v", err)
	}
}
