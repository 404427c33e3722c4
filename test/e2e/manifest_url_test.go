package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/testkit"
	"github.com/podplane/podplane/test/harness"
)

// manifestServer answers with a PodList to those who know the token.
type manifestServer struct {
	url    string
	server *http.Server

	mu   sync.Mutex
	pods []corev1.Pod
}

func (m *manifestServer) set(pods ...corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pods = pods
}

func (m *manifestServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.URL.Path != "/pods" || r.Header.Get("X-Token") != "geheim" {
		http.Error(w, "who are you?", http.StatusForbidden)
		return
	}
	_ = json.NewEncoder(w).Encode(corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: m.pods})
}

func serveManifests(t *testing.T) *manifestServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &manifestServer{url: "http://" + l.Addr().String() + "/pods"}
	m.server = &http.Server{Handler: m, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = m.server.Serve(l) }() // ends with Close
	t.Cleanup(func() { _ = m.server.Close() })
	return m
}

// static is a pod for a manifest that says what it is.
func static(t *testing.T, name string, args ...string) corev1.Pod {
	grace := int64(1)
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns(t), Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{{Name: "app", Image: image, Args: append([]string{"sleep"}, args...)}},
		},
	}
}

// TestManifestURL runs pods of a URL beside those of the directory and of REST, over names that two of them want, a server that is away, and kills of syncd.
func TestManifestURL(t *testing.T) {
	t.Parallel()
	node, m := testkit.Containerd(t), serveManifests(t)
	s, err := harness.New(harness.Options{
		CRIEndpoint: node.Endpoint, Node: "manifesturl", Root: filepath.Join(node.Dir, "manifesturl"), CgroupRoot: filepath.Join(node.CgroupParent, "manifesturl"),
		Args: []string{"--manifest-url", m.url, "--manifest-url-header", "X-Token: geheim"}, Env: []string{"PODPLANE_SYNCD_MANIFEST_URL_RESCAN=1s"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	ctx := testContext(t)
	m.set(static(t, "web", "forever"))
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	web := wantStatic(t, ctx, s, "web", "")
	if web.Annotations["kubernetes.io/config.source"] != "http" || strings.Contains(s.Logs(), "geheim") {
		t.Errorf("got annotations %v, or the token is in the logs", web.Annotations)
	}

	// REST had the name first; the URL, then a file, wait for it in turn.
	m.set(static(t, "web", "forever"), static(t, "shared", "forever"))
	rest := static(t, "shared-"+s.Node(), "forever")
	rest.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	first := wantStatic(t, ctx, s, "shared", "")
	file := filepath.Join(s.ManifestDir(), "shared.yaml")
	put(t, file, asManifest(t, static(t, "shared", "1000s")))
	wantTold(t, s, ctx, "FailedValidation", file+": the name of pod "+ns(t)+"/shared-"+s.Node()+" is taken by one from "+m.url)
	body, err := json.Marshal(rest)
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.Call(ctx, http.MethodPost, pods(t), "application/json", body)
	if err != nil || a.Code != http.StatusConflict || !strings.Contains(string(a.Body), "it comes from "+m.url) {
		t.Errorf("got %d %s %v, want 409 and where the name's owner comes from", a.Code, a.Body, err)
	}
	m.set(static(t, "web", "forever"))
	second := wantStatic(t, ctx, s, "shared", string(first.UID))
	if second.Annotations["kubernetes.io/config.source"] != "file" {
		t.Errorf("the name went to %v", second.Annotations)
	}

	// Away, and over a kill of syncd, everything stays as it is.
	if err := m.server.Close(); err != nil {
		t.Fatal(err)
	}
	wantTold(t, s, ctx, "FailedManifestURL", "what it said last stays")
	if err := s.Kill("syncd"); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(ctx, t, "syncd asks again after its restart", func(ctx context.Context) error {
		if n := told(ctx, s, "FailedManifestURL", "what it said last stays"); n < 2 {
			return fmt.Errorf("it told %d times that the URL is away", n)
		}
		return nil
	})
	for name, uid := range map[string]string{"web": string(web.UID), "shared": string(second.UID)} {
		p := wantStatic(t, ctx, s, name, "")
		if string(p.UID) != uid || p.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("%s: got UID %s and %d restarts, want %s and none", name, p.UID, p.Status.ContainerStatuses[0].RestartCount, uid)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := s.WaitGone(ctx, ns(t), "shared-"+s.Node()); err != nil {
		t.Fatal(err)
	}
	for _, uid := range []string{string(first.UID), string(second.UID)} {
		wantNothingLeft(t, s, uid)
	}
}

// wantStatic waits for the ready static pod of a name, another one than not.
func wantStatic(t *testing.T, ctx context.Context, s *harness.Stack, name, not string) *corev1.Pod {
	t.Helper()
	p, err := s.WaitPod(ctx, ns(t), name+"-"+s.Node(), "is ready", func(p *corev1.Pod) bool {
		return harness.IsReady(p) && string(p.UID) != not
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func asManifest(t *testing.T, p corev1.Pod) string {
	t.Helper()
	p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	data, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// told counts how often an Event was told; none while syncd is away.
func told(ctx context.Context, s *harness.Stack, reason, words string) (n int32) {
	a, err := s.Call(ctx, http.MethodGet, "/api/v1/events", "", nil)
	if err != nil || a.Code != http.StatusOK {
		return 0
	}
	var l corev1.EventList
	if json.Unmarshal(a.Body, &l) != nil {
		return 0
	}
	for _, e := range l.Items {
		if e.Reason == reason && strings.Contains(e.Message, words) {
			n += max(e.Count, 1)
		}
	}
	return n
}

func wantTold(t *testing.T, s *harness.Stack, ctx context.Context, reason, words string) {
	t.Helper()
	eventually(t, ctx, "an Event "+reason+" says "+words, func() bool { return told(ctx, s, reason, words) > 0 })
}
