package manifest_test

import (
	"crypto/sha256"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/admission"
	"github.com/podplane/podplane/services/syncd/internal/manifest"
	"github.com/podplane/podplane/services/syncd/internal/store"
)

const rescan = 20 * time.Millisecond

// site is what an HTTP server answers. Its methods may be called at any time.
type site struct {
	mu     sync.Mutex
	status int
	body   string
	etag   string
	asked  int // requests that were answered
	full   int // of those, with a body
	last   http.Header
	user   string
}

func (s *site) says(status int, body string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status, s.body, s.etag = status, body, fmt.Sprintf(`"%x"`, sha256.Sum256([]byte(body)))
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	s.last = r.Header.Clone()
	s.user, _, _ = r.BasicAuth()
	if s.etag != "" {
		w.Header().Set("ETag", s.etag)
		if r.Header.Get("If-None-Match") == s.etag && s.status == http.StatusOK {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	s.full++
	w.WriteHeader(s.status)
	_, _ = w.Write([]byte(s.body))
}

func (s *site) count() (asked, full int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked, s.full
}

// more waits until the server was asked that many times more.
func (s *site) more(t *testing.T, n int) {
	t.Helper()
	from, _ := s.count()
	deadline := time.After(15 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if asked, _ := s.count(); asked >= from+n {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the URL is not asked any more")
		}
	}
}

// item is a Pod in JSON, without type where it stands in a list.
func item(name, image string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"containers":[{"name":"a","image":%q}]}}`, name, image)
}

func podList(items ...string) string {
	return `{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[` + strings.Join(items, ",") + `]}`
}

func serve(t *testing.T) (*site, *httptest.Server) {
	t.Helper()
	s := &site{status: http.StatusOK}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return s, server
}

func TestLifeOfAURL(t *testing.T) {
	s, server := serve(t)
	s.says(200, podList(item("web", "one:1"), item("db", "one:1")))
	r := startWith(t, manifest.Remote{
		URL: strings.Replace(server.URL, "http://", "http://me:geheim@", 1) + "/pods", Header: []string{"X-Node: a"}, Rescan: rescan,
	})
	web := r.stored("web-node-1")
	if web.Record.GetSource() != podplanev1.Source_SOURCE_HTTP || web.Record.GetOrigin() != server.URL+"/pods" ||
		web.Pod.Annotations[manifest.AnnotationSource] != "http" || web.Pod.Annotations[manifest.AnnotationHash] != web.UID ||
		web.Pod.Annotations[manifest.AnnotationSeen] == "" || len(web.Pod.Spec.Tolerations) != 0 {
		t.Errorf("got %+v", web)
	}
	db := r.stored("db-node-1")
	s.more(t, 3)
	if _, full := s.count(); full != 1 {
		t.Errorf("%d answers with a body: what is the same is fetched again", full)
	}
	if s.last.Get("X-Node") != "a" || s.user != "me" {
		t.Errorf("got headers %v and user %q", s.last, s.user)
	}

	// A changed pod is another one, after the first; one that is not named any more goes.
	s.says(200, podList(item("web", "two:1")))
	r.terminating(web.UID)
	r.terminating(db.UID)
	r.event("Pod web-node-1", "WaitingForDeletion", "former content")
	r.gone(web.UID)
	second := r.stored("web-node-1")
	r.gone(db.UID)

	// One Pod does too, as YAML; the same UID as in a list is not asked for.
	s.says(200, yaml("single", "one:1"))
	r.terminating(second.UID)
	single := r.stored("single-node-1")
	r.gone(second.UID)

	// An empty list ends everything.
	s.says(200, podList())
	r.terminating(single.UID)
	if l := r.log.String(); strings.Contains(l, "geheim") {
		t.Errorf("the log has the password:\n%s", l)
	}
}

func TestWhatAURLSaidLastStays(t *testing.T) {
	s, server := serve(t)
	s.says(200, podList(item("web", "one:1")))
	r := startWith(t, manifest.Remote{URL: server.URL, Rescan: rescan})
	web := r.stored("web-node-1")
	stays := func(while string) {
		t.Helper()
		s.more(t, 3)
		if c, ok := r.store.Pod(web.UID); !ok || c.Pod.DeletionTimestamp != nil {
			t.Errorf("%s ended the pod", while)
		}
	}
	for _, c := range []struct {
		status int
		body   string
		event  string
	}{
		{500, podList(), "500 Internal Server Error; what it said last stays"},
		{404, podList(), "404 Not Found"},
		{200, "", "the body is empty"},
		{200, "<html>hello</html>", "the body is not an object"},
		{200, `{"kind":"PodList","apiVersion":"v2","items":[]}`, `apiVersion: Unsupported value`},
		{200, `{"kind":"Service","apiVersion":"v1"}`, `supported values: "Pod", "PodList", "List"`},
		{200, `{"kind":"PodList","apiVersion":"v1","items":[` + strings.Repeat(" ", manifest.MaxBytes) + `]}`, "more than 10485760 bytes"},
	} {
		s.says(c.status, c.body)
		r.event("Node Node-1 Warning FailedManifestURL", server.URL, c.event)
		stays(c.event)
	}
	if n := strings.Count(r.log.String(), "404 Not Found"); n != 1 {
		t.Errorf("the log tells %d times of one error", n)
	}

	// A new process while the server is away keeps it too.
	r.stop()
	server.Close()
	r.run(r.dir)
	r.event("FailedManifestURL", "connection refused")
	if c, ok := r.store.Pod(web.UID); !ok || c.Pod.DeletionTimestamp != nil {
		t.Error("a new process ended the pod of a URL that is away")
	}
	r.stop()
	r.remote = manifest.Remote{}
	r.run(r.dir) // without a URL, nothing of it stays
	r.terminating(web.UID)
}

func TestABrokenItemKeepsItsPod(t *testing.T) {
	s, server := serve(t)
	s.says(200, podList(item("a", "x:1"), item("b", "x:1")))
	r := startWith(t, manifest.Remote{URL: server.URL, Rescan: rescan})
	a, b := r.stored("a-node-1"), r.stored("b-node-1")
	s.says(200, podList(`{"metadata":{"name":"a"},"spec":{"containers":[{"name":"a","imagee":"x"}]}}`, item("c", "x:1")))
	r.event("Node Node-1 Warning FailedValidation", "items[0]: ", "spec.containers[0].imagee")
	r.terminating(b.UID)
	r.stored("c-node-1")
	if c, ok := r.store.Pod(a.UID); !ok || c.Pod.DeletionTimestamp != nil {
		t.Error("a broken item ended its pod")
	}
	s.says(200, podList(item("a", "x:1"), item("c", "x:1")))
	s.more(t, 3)
	if c, ok := r.store.Pod(a.UID); !ok || c.Pod.DeletionTimestamp != nil || c.Record.GetStoredAt().AsTime() != a.Record.GetStoredAt().AsTime() {
		t.Error("a mended item is not the pod that it was")
	}
}

// TestNamesBetweenSources: the first has a name, the next takes its place.
func TestNamesBetweenSources(t *testing.T) {
	s, server := serve(t)
	s.says(200, podList())
	r := startWith(t, manifest.Remote{URL: server.URL, Rescan: rescan})
	fromAPI := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-node-1", Namespace: "default"},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "a", Image: "x:1"}}},
	}
	if err := (admission.Node{Name: node.Name}).Pod(fromAPI, ""); err != nil {
		t.Fatal(err)
	}
	o, err := r.store.CreatePod(t.Context(), store.NewPod{Pod: fromAPI, Source: podplanev1.Source_SOURCE_API})
	if err != nil {
		t.Fatal(err)
	}
	r.stored("web-node-1")
	s.says(200, podList(item("web", "x:1")))
	r.event("Pod web-node-1 Warning FailedValidation", server.URL, "taken by one from the API (UID "+o.UID+")")
	if _, err := r.store.DeletePod(t.Context(), "default", "web-node-1", store.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.gone(o.UID)
	fromURL := r.stored("web-node-1")
	r.put("web.yaml", yaml("web", "x:1"))
	r.event("Pod web-node-1 Warning FailedValidation", "web.yaml", "taken by one from "+server.URL)

	// What is changed keeps its name against who waits.
	s.says(200, podList(item("web", "x:2")))
	r.terminating(fromURL.UID)
	r.gone(fromURL.UID)
	changed := r.stored("web-node-1")
	if changed.Record.GetOrigin() != server.URL {
		t.Errorf("the name went to %s", changed.Record.GetOrigin())
	}
	s.says(200, podList())
	r.terminating(changed.UID)
	r.gone(changed.UID)
	if file := r.stored("web-node-1"); file.Record.GetOrigin() != filepath.Join(r.dir, "web.yaml") {
		t.Errorf("the name went to %s", file.Record.GetOrigin())
	}
}

func TestHTTPS(t *testing.T) {
	s := &site{status: 200}
	s.says(200, podList(item("web", "x:1")))
	server := httptest.NewTLSServer(s)
	t.Cleanup(server.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	r := startWith(t, manifest.Remote{URL: server.URL, Rescan: rescan, CA: ca})
	r.event("FailedManifestURL", "ca.pem: no such file")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(ca, block, 0o600); err != nil {
		t.Fatal(err)
	}
	r.stored("web-node-1")
	r.stop()
	r.remote.CA = ""
	r.run(r.dir)
	r.event("FailedManifestURL", "certificate signed by unknown authority")
}

func TestRedirects(t *testing.T) {
	s, server := serve(t)
	s.says(200, podList(item("web", "x:1")))
	near := http.NewServeMux()
	near.Handle("/pods", s)
	near.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/pods", http.StatusFound) })
	near.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, server.URL, http.StatusFound) })
	near.HandleFunc("/round", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/round", http.StatusFound) })
	other := httptest.NewServer(near)
	t.Cleanup(other.Close)
	r := startWith(t, manifest.Remote{URL: other.URL + "/away", Header: []string{"X-Token: geheim"}, Rescan: rescan})
	r.event("FailedManifestURL", "redirects to another host")
	r.stop()
	if asked, _ := s.count(); asked != 0 {
		t.Error("the header went to another host")
	}
	r.remote.URL = other.URL + "/round"
	r.run(r.dir)
	r.event("FailedManifestURL", "more than 5 redirects")
	r.stop()
	r.remote.URL = other.URL + "/moved"
	r.run(r.dir)
	r.stored("web-node-1")
}

// TestAStalledServerHoldsNothingUp: files count while a request hangs.
func TestAStalledServerHoldsNothingUp(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(release) })
	r := startWith(t, manifest.Remote{URL: server.URL, Rescan: rescan})
	r.put("a.yaml", yaml("a", "x:1"))
	a := r.stored("a-node-1")
	r.remove("a.yaml")
	r.terminating(a.UID)
}

func TestRemoteCheck(t *testing.T) {
	for _, c := range []struct {
		remote manifest.Remote
		want   string
	}{
		{manifest.Remote{}, ""},
		{manifest.Remote{URL: "http://h/pods"}, ""},
		{manifest.Remote{URL: "https://u:p@h:8443/pods?x=1", Header: []string{"A: b", "c:d:e"}}, ""},
		{manifest.Remote{URL: "ftp://h/"}, "http://host/path"},
		{manifest.Remote{URL: "/etc/pods"}, "http://host/path"},
		{manifest.Remote{URL: "http://geheim@:99999999:/"}, "can't be read"},
		{manifest.Remote{URL: "http://h/", Header: []string{"A: b", "geheim"}}, "header 2"},
		{manifest.Remote{URL: "http://h/", Header: []string{"A b: geheim"}}, "header 1"},
		{manifest.Remote{URL: "http://h/", Header: []string{"A: geheim\r\nB: c"}}, "header 1"},
	} {
		err := c.remote.Check()
		if (err == nil) != (c.want == "") || (err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: got %v, want %q", c.remote, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "geheim") {
			t.Errorf("the error repeats a secret: %v", err)
		}
	}
}
