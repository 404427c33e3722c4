package e2e_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/testkit"
	"github.com/podplane/podplane/test/harness"
)

// guarded is a Podplane whose front door is closed and whose processes talk TLS.
type guarded struct {
	*harness.Stack
	dir    string
	tokens map[string]string // by user
	client *http.Client
	args   []string
}

const guardedBindings = `
bindings:
- {role: view, users: [viewer], namespaces: [team]}
- {role: edit, users: [editor], namespaces: [team]}
- {role: exec, users: [runner], namespaces: [team]}
- {role: admin, users: [owner], groups: [ops], namespaces: ["*"]}
`

func newGuarded(t *testing.T) *guarded {
	t.Helper()
	node := testkit.Containerd(t)
	g := &guarded{dir: t.TempDir(), tokens: map[string]string{}}
	binary, err := harness.FindUp(filepath.Join("bin", "podplane"))
	if err != nil {
		t.Fatal(err)
	}
	certs, file := filepath.Join(g.dir, "tls"), filepath.Join(g.dir, "tokens.yaml")
	g.podplane(t, binary, "certs", "--dir", certs)
	g.podplane(t, binary, "certs", "client", "carol", "--group", "ops", "--dir", certs)
	for _, user := range []string{"viewer", "editor", "runner", "owner", "nobody"} {
		g.tokens[user] = strings.TrimSpace(g.podplane(t, binary, "token", "create", user, "--file", file))
		write(t, filepath.Join(g.dir, user+".token"), g.tokens[user])
	}
	write(t, filepath.Join(g.dir, "bindings.yaml"), guardedBindings)
	g.args = []string{
		"--tls-dir", certs, "--tls-cert", filepath.Join(certs, "https.crt"), "--tls-key", filepath.Join(certs, "https.key"),
		"--tokens", file, "--client-ca", filepath.Join(certs, "client-ca.crt"), "--bindings", filepath.Join(g.dir, "bindings.yaml"),
	}
	root, err := os.MkdirTemp(node.Dir, "guarded") // each test's records are its own
	if err != nil {
		t.Fatal(err)
	}
	if g.Stack, err = harness.New(harness.Options{
		Binary: binary, CRIEndpoint: node.Endpoint, Node: "guarded", Root: root,
		CgroupRoot: filepath.Join(node.CgroupParent, "guarded"), Args: g.args,
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		if err := g.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	if err := g.Start(testContext(t)); err != nil {
		t.Fatal(err)
	}
	g.client = g.newClient(t, nil)
	return g
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// podplane runs the command line and gives its standard output.
func (g *guarded) podplane(t *testing.T, binary string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(testContext(t), binary, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("podplane %s: %v\n%s%s", strings.Join(args, " "), err, &out, &errs)
	}
	return out.String()
}

func (g *guarded) roots(t *testing.T) *x509.CertPool {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(g.dir, "tls", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		t.Fatal("ca.crt holds no certificate")
	}
	return pool
}

func (g *guarded) newClient(t *testing.T, shown []tls.Certificate) *http.Client {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: g.roots(t), Certificates: shown}, ForceAttemptHTTP2: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: time.Minute}
}

// call asks as a user; an empty one shows nothing.
func (g *guarded) call(t *testing.T, c *http.Client, user, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, g.Server()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/yaml")
	}
	if user != "" {
		req.Header.Set("Authorization", "Bearer "+g.tokens[user])
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", method, path, err, g.Logs())
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(answer)
}

// TestClosedDoor runs a pod behind a door that asks everybody, over TLS everywhere.
func TestClosedDoor(t *testing.T) {
	g := newGuarded(t)
	t.Run("unknown", func(t *testing.T) {
		for path, want := range map[string]int{
			"/healthz": 200, "/readyz": 401, "/metrics": 401, "/openapi.json": 401, "/docs": 401, "/": 401, "/version": 401, "/api/v1/pods": 401, "/nothing": 401,
		} {
			if code, body := g.call(t, g.client, "", "GET", path, ""); code != want {
				t.Errorf("%s: %d, want %d: %s", path, code, want, body)
			}
		}
	})
	t.Run("roles", func(t *testing.T) { rolesOnVerbs(t, g) })
	t.Run("pod", func(t *testing.T) { podBehindTheDoor(t, g) })
	t.Run("certificate", func(t *testing.T) {
		carol, err := tls.LoadX509KeyPair(filepath.Join(g.dir, "tls", "carol.crt"), filepath.Join(g.dir, "tls", "carol.key"))
		if err != nil {
			t.Fatal(err)
		}
		if code, body := g.call(t, g.newClient(t, []tls.Certificate{carol}), "", "GET", "/api/v1/pods", ""); code != 200 {
			t.Errorf("carol of ops: %d %s", code, body)
		}
	})
	t.Run("plain", func(t *testing.T) { plainIsRefused(t, g) })
	t.Run("disk", func(t *testing.T) { nothingInTheClear(t, g) })
	t.Run("killed", func(t *testing.T) {
		for _, name := range []string{"nats", "syncd", "gateway"} {
			if err := g.Kill(name); err != nil {
				t.Fatal(err)
			}
		}
		testkit.Eventually(testContext(t), t, "the services are back", func(ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, "GET", g.Server()+"/api/v1/pods", nil)
			if err != nil {
				return err
			}
			req.Header.Set("Authorization", "Bearer "+g.tokens["owner"])
			resp, err := g.client.Do(req)
			if err != nil {
				return err
			}
			_ = resp.Body.Close()
			if resp.StatusCode != 200 {
				return fmt.Errorf("code %d", resp.StatusCode)
			}
			return nil
		})
	})
	t.Run("revoked", func(t *testing.T) { revokedIsRefused(t, g) })
	t.Run("audit", func(t *testing.T) { everythingIsWrittenDown(t, g) })
}

// rolesOnVerbs tries every role on every verb; what is let in answers anything but 401 and 403.
func rolesOnVerbs(t *testing.T, g *guarded) {
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: denied}\nspec: {containers: []}"
	for _, c := range []struct {
		method, path, body string
		may                string // the users, besides owner
	}{
		{"GET", "/api/v1/namespaces/team/pods", "", "viewer editor"},
		{"GET", "/api/v1/namespaces/team/pods/none", "", "viewer editor runner"},
		{"GET", "/api/v1/namespaces/team/pods/none/log", "", "viewer editor"},
		{"GET", "/api/v1/namespaces/team/pods/none/status", "", "viewer editor"},
		{"POST", "/api/v1/namespaces/team/pods", pod, "editor"},
		{"PUT", "/api/v1/namespaces/team/pods/none", pod, "editor"},
		{"DELETE", "/api/v1/namespaces/team/pods/none", "", "editor"},
		{"DELETE", "/api/v1/namespaces/team/pods", "", "editor"},
		{"GET", "/api/v1/namespaces/team/secrets", "", "editor"},
		{"GET", "/api/v1/namespaces/team/secrets/none", "", "editor"},
		{"GET", "/api/v1/namespaces/team/configmaps", "", "viewer editor"},
		{"DELETE", "/api/v1/namespaces/team/configmaps/none", "", "editor"},
		{"GET", "/api/v1/namespaces/team/events", "", "viewer editor"},
		{"GET", "/api/v1/namespaces/other/pods", "", ""},
		{"POST", "/api/v1/namespaces/other/pods", pod, ""},
		{"GET", "/api/v1/pods", "", ""},
		{"GET", "/api/v1/nodes", "", ""},
		{"GET", "/podplane/v1/services", "", ""},
		{"GET", "/podplane/v1/probes?namespace=team", "", "viewer editor"},
		{"GET", "/podplane/v1/probes", "", ""},
		{"GET", "/metrics", "", ""},
		{"GET", "/version", "", "viewer editor runner nobody"},
	} {
		for _, user := range []string{"viewer", "editor", "runner", "nobody", "owner"} {
			code, body := g.call(t, g.client, user, c.method, c.path, c.body)
			may := user == "owner" || strings.Contains(c.may, user)
			switch {
			case may && (code == 401 || code == 403 || code >= 500):
				t.Errorf("%s %s %s: %d %s", user, c.method, c.path, code, body)
			case !may && (code != 403 || !strings.Contains(body, `"reason":"Forbidden"`) || !strings.Contains(body, `user \"`+user+`\" cannot `)):
				t.Errorf("%s %s %s: %d %s", user, c.method, c.path, code, body)
			}
		}
	}
}

// podBehindTheDoor runs a pod by the command line, with a token in a file.
func podBehindTheDoor(t *testing.T, g *guarded) {
	manifests := filepath.Join(g.dir, "pod.yaml")
	write(t, manifests, manifest("web", `
  containers:
  - name: web
    image: $IMAGE
    args: [serve]
    ports: [{containerPort: 8080}]
    readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
`))
	as := func(user string, args ...string) []string {
		return append(args, "--server", g.Server(), "--token-file", filepath.Join(g.dir, user+".token"), "--certificate-authority", filepath.Join(g.dir, "tls", "ca.crt"), "-n", "team")
	}
	g.podplane(t, g.Binary(), as("editor", "apply", "-f", manifests)...)
	g.podplane(t, g.Binary(), as("viewer", "wait", "web")...)
	if out := g.podplane(t, g.Binary(), as("viewer", "get", "pods")...); !strings.Contains(out, "Running") {
		t.Errorf("get pods: %s", out)
	}
	cmd := exec.CommandContext(testContext(t), g.Binary(), as("viewer", "delete", "pod", "web")...)
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), `user "viewer" cannot delete resource "pods"`) {
		t.Errorf("a viewer deletes: %v %s", err, out)
	}
	g.podplane(t, g.Binary(), as("editor", "delete", "pod", "web")...)
	code, body := g.call(t, g.client, "editor", "POST", "/api/v1/namespaces/team/secrets", "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {password: correct-horse-battery-staple}")
	if code != 201 {
		t.Errorf("secret: %d %s", code, body)
	}
}

// plainIsRefused speaks without TLS, or without a certificate, to everything that listens.
func plainIsRefused(t *testing.T, g *guarded) {
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http"+strings.TrimPrefix(g.Server(), "https")+"/api/v1/pods", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err == nil {
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("the front door over HTTP: %d", resp.StatusCode)
		}
	}
	code, body := g.call(t, g.client, "owner", "GET", "/podplane/v1/services", "")
	var list struct {
		Services []struct{ Service, GrpcAddress string }
	}
	if err := json.Unmarshal([]byte(body), &list); err != nil || code != 200 || len(list.Services) != len(harness.Services) {
		t.Fatalf("%d %s %v", code, body, err)
	}
	for _, s := range list.Services {
		dialer := &net.Dialer{Timeout: 5 * time.Second}
		conn, err := tls.DialWithDialer(dialer, "tcp", s.GrpcAddress, &tls.Config{RootCAs: g.roots(t), ServerName: s.Service + ".podplane.internal", NextProtos: []string{"h2"}})
		if err == nil { // TLS 1.3 tells with the first bytes that a certificate is wanted
			_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
			_, _ = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
			_, err = io.ReadAll(conn)
			_ = conn.Close()
		}
		var remote *net.OpError
		if err == nil || errors.As(err, &remote) && remote.Timeout() {
			t.Errorf("%s takes a connection without a certificate: %v", s.Service, err)
		}
		plain, err := net.DialTimeout("tcp", s.GrpcAddress, 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		_ = plain.SetDeadline(time.Now().Add(5 * time.Second))
		_, _ = io.WriteString(plain, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
		if answer, _ := io.ReadAll(plain); bytes.HasPrefix(answer, []byte{0, 0}) && len(answer) > 9 {
			t.Errorf("%s speaks plain HTTP/2: %x", s.Service, answer)
		}
		_ = plain.Close()
	}
	for _, listen := range []string{"0.0.0.0:1", ":1", "[::]:1"} {
		out, err := exec.CommandContext(testContext(t), g.Binary(), "gateway", "--listen", listen, "--insecure-listen", "--check-config").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "TLS") {
			t.Errorf("--listen %s: %v %s", listen, err, out)
		}
	}
}

// nothingInTheClear looks for a Secret's value on the disk of the bus and in the logs.
func nothingInTheClear(t *testing.T, g *guarded) {
	for _, dir := range []string{filepath.Join(g.Root(), "nats"), filepath.Join(g.Root(), "log"), filepath.Join(g.Root(), "audit")} {
		files := 0
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			files++
			for _, never := range []string{"correct-horse-battery-staple", "Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5LXN0YXBsZQ", g.tokens["editor"]} {
				if bytes.Contains(data, []byte(never)) {
					t.Errorf("%s holds %q", path, never)
				}
			}
			return err
		})
		if err != nil || files == 0 {
			t.Errorf("%s: %d files: %v", dir, files, err)
		}
	}
	if info, err := os.Stat(filepath.Join(g.Root(), "nats.key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key of the records: %v %v", info, err)
	}
}

// revokedIsRefused revokes a token that a watch is open with: both end within a second.
func revokedIsRefused(t *testing.T, g *guarded) {
	req, err := http.NewRequestWithContext(testContext(t), "GET", g.Server()+"/api/v1/namespaces/team/pods?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+g.tokens["viewer"])
	resp, err := g.client.Do(req)
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	}
	defer func() { _ = resp.Body.Close() }()
	file := filepath.Join(g.dir, "tokens.yaml")
	id := strings.Split(g.tokens["viewer"], "_")[1]
	if out := g.podplane(t, g.Binary(), "token", "list", "--file", file); !strings.Contains(out, id) {
		t.Errorf("token list: %s", out)
	}
	g.podplane(t, g.Binary(), "token", "revoke", id, "--file", file)
	begin := time.Now()
	for {
		if code, _ := g.call(t, g.client, "viewer", "GET", "/version", ""); code == 401 {
			break
		}
		if time.Since(begin) > time.Second {
			t.Fatal("a revoked token is good after a second")
		}
	}
	if body, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(body), `"code":401`) {
		t.Errorf("the watch ended with %s %v", body, err)
	}
	if took := time.Since(begin); took > 1500*time.Millisecond { // a second, and the test's own time on a busy host
		t.Errorf("the watch went on for %v", took)
	}
	if code, body := g.call(t, g.client, "editor", "GET", "/version", ""); code != 200 {
		t.Errorf("another's token: %d %s", code, body)
	}
}

// everythingIsWrittenDown reads the audit log of what the others did.
func everythingIsWrittenDown(t *testing.T, g *guarded) {
	data, err := os.ReadFile(filepath.Join(g.Root(), "audit", "audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		var e struct {
			User, Verb, Resource, Namespace, Name, Source string
			Code                                          int
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if e.Source == "" || e.Verb == "" {
			t.Errorf("%s", line)
		}
		found[fmt.Sprintf("%s %s %s %s/%s %d", e.User, e.Verb, e.Resource, e.Namespace, e.Name, e.Code)] = true
	}
	for _, want := range []string{
		"editor create pods team/ 201", "editor delete pods team/web 200", "viewer delete pods team/web 403", "carol list pods / 200",
		"editor create secrets team/ 201", " get  / 401",
	} {
		if !found[want] {
			t.Errorf("no line %q", want)
		}
	}
}
