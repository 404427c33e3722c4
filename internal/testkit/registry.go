package testkit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Registry is an image registry on 127.0.0.1 in this process, over plain HTTP. It can be told to ask for credentials, to fail and
// to be slow, for each repository.
type Registry struct {
	// Host is its host:port, the first part of its images' names.
	Host string

	server *http.Server
	served chan error
	// pushes go round the rules below, which are for the runtime.
	handler http.Handler

	mu     sync.Mutex
	rules  map[string]*Rule
	pulls  map[string]int
	tokens map[string]string // to the user that they were given to
}

// Rule changes how a repository answers to those who pull.
type Rule struct {
	// User and Password are asked for when User is not empty; with Token, for a token that they are exchanged for at another address.
	User, Password string
	Token          bool
	// Away: connections are closed without an answer.
	Away bool
	// Blob, when not nil, is called before each piece of a layer or configuration is sent, with how many bytes of this answer were sent. It may wait; an error
	// cuts the connection.
	Blob func(ctx context.Context, sent int) error
	// Status, when not 0, is answered to everything.
	Status int
	// Hold, when not nil, keeps requests waiting until it is closed.
	Hold <-chan struct{}
}

func newRegistry() (*Registry, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start registry: %w", err)
	}
	r := &Registry{
		Host:    listener.Addr().String(),
		handler: registry.New(registry.Logger(log.New(io.Discard, "", 0))),
		served:  make(chan error, 1),
		rules:   map[string]*Rule{},
		pulls:   map[string]int{},
		tokens:  map[string]string{},
	}
	r.server = &http.Server{Handler: http.HandlerFunc(r.serve), ReadHeaderTimeout: 10 * time.Second}
	// A connection that is kept would be a goroutine in the leak checks of tests that did not pull.
	r.server.SetKeepAlivesEnabled(false)
	go r.listen(listener)
	return r, nil
}

func (r *Registry) listen(listener net.Listener) { r.served <- r.server.Serve(listener) }

func (r *Registry) close() error {
	err := r.server.Close()
	if served := <-r.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// Name is the full name of an image of this registry: Name("app:1") is 127.0.0.1:port/app:1.
func (r *Registry) Name(image string) string { return r.Host + "/" + image }

// Push stores an image and returns its full name.
func (r *Registry) Push(ctx context.Context, image string, img v1.Image) (string, error) {
	reference, err := name.ParseReference(r.Name(image), name.Insecure)
	if err != nil {
		return "", fmt.Errorf("push %s: %w", image, err)
	}
	if err := remote.Write(reference, img, remote.WithContext(ctx), remote.WithTransport(direct{r.handler})); err != nil {
		return "", fmt.Errorf("push %s: %w", image, err)
	}
	return r.Name(image), nil
}

// SetRule changes how a repository ("app") answers; nil takes the rule away.
func (r *Registry) SetRule(repository string, rule *Rule) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rules[repository] = rule
}

// Pulls counts the manifests of a repository that were asked for with success.
func (r *Registry) Pulls(repository string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pulls[repository]
}

func (r *Registry) serve(w http.ResponseWriter, request *http.Request) {
	if request.URL.Path == tokenPath {
		r.giveToken(w, request)
		return
	}
	repository := repositoryOf(request.URL.Path)
	r.mu.Lock()
	rule := r.rules[repository]
	r.mu.Unlock()
	if rule != nil {
		if !r.obey(rule, w, request) {
			return
		}
		if rule.Blob != nil && strings.Contains(request.URL.Path, "/blobs/") {
			w = &paced{ResponseWriter: w, ctx: request.Context(), step: rule.Blob}
		}
	}
	if request.Method == http.MethodGet && strings.Contains(request.URL.Path, "/manifests/") {
		r.mu.Lock()
		r.pulls[repository]++
		r.mu.Unlock()
	}
	if strings.HasSuffix(request.Header.Get("Range"), "-") {
		request.Header.Del("Range") // it only knows ranges with an end; containerd takes what it asked for out of the whole
	}
	r.handler.ServeHTTP(w, request)
}

// obey does what the rule says, and says whether the request goes on.
func (r *Registry) obey(rule *Rule, w http.ResponseWriter, request *http.Request) bool {
	if rule.Hold != nil {
		select {
		case <-rule.Hold:
		case <-request.Context().Done():
			return false
		}
	}
	if rule.Away {
		panic(http.ErrAbortHandler)
	}
	if rule.Status != 0 {
		http.Error(w, http.StatusText(rule.Status), rule.Status)
		return false
	}
	if rule.User == "" || r.authorized(rule, request) {
		return true
	}
	challenge := `Basic realm="testkit"`
	if rule.Token {
		challenge = `Bearer realm="http://` + r.Host + tokenPath + `",service="testkit"`
	}
	w.Header().Set("WWW-Authenticate", challenge)
	http.Error(w, "credentials are missing or wrong", http.StatusUnauthorized)
	return false
}

// tokenPath is where credentials are exchanged for a token.
const tokenPath = "/token"

func (r *Registry) authorized(rule *Rule, request *http.Request) bool {
	if !rule.Token {
		user, password, _ := request.BasicAuth()
		return user == rule.User && password == rule.Password
	}
	token, ok := strings.CutPrefix(request.Header.Get("Authorization"), "Bearer ")
	r.mu.Lock()
	defer r.mu.Unlock()
	return ok && r.tokens[token] == rule.User
}

// giveToken gives a token to a user of any rule.
func (r *Registry) giveToken(w http.ResponseWriter, request *http.Request) {
	user, password, _ := request.BasicAuth()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rule := range r.rules {
		if rule != nil && rule.Token && rule.User == user && rule.Password == password {
			token := rand.Text()
			r.tokens[token] = user
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, `{"token":%q}`, token)
			return
		}
	}
	http.Error(w, "no such user", http.StatusUnauthorized)
}

// paced asks before each piece that it sends.
type paced struct {
	http.ResponseWriter
	ctx  context.Context
	step func(context.Context, int) error
	sent int
}

// piece is how much is sent at once.
const piece = 16 << 10

// Write implements io.Writer.
func (p *paced) Write(b []byte) (int, error) {
	written := 0
	for len(b) > 0 {
		if err := p.step(p.ctx, p.sent); err != nil {
			panic(http.ErrAbortHandler)
		}
		n, err := p.ResponseWriter.Write(b[:min(len(b), piece)])
		written, p.sent, b = written+n, p.sent+n, b[n:]
		if err != nil {
			return written, err
		}
		if f, ok := p.ResponseWriter.(http.Flusher); ok {
			f.Flush()
		}
	}
	return written, nil
}

// repositoryOf takes the repository out of /v2/<repository>/<manifests|blobs|tags>/...
func repositoryOf(path string) string {
	path = strings.TrimPrefix(path, "/v2/")
	for _, kind := range []string{"/manifests/", "/blobs/", "/tags/"} {
		if repository, _, ok := strings.Cut(path, kind); ok {
			return repository
		}
	}
	return ""
}

// direct is a transport that calls a handler in this goroutine.
type direct struct{ handler http.Handler }

// RoundTrip implements http.RoundTripper.
func (d direct) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Body == nil {
		request.Body = http.NoBody
	}
	w := &response{header: http.Header{}, status: http.StatusOK}
	d.handler.ServeHTTP(w, request)
	return &http.Response{
		Status:        http.StatusText(w.status),
		StatusCode:    w.status,
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        w.header,
		Body:          io.NopCloser(strings.NewReader(w.body.String())),
		ContentLength: int64(w.body.Len()),
		Request:       request,
	}, request.Body.Close()
}

type response struct {
	header http.Header
	status int
	body   strings.Builder
}

func (w *response) Header() http.Header         { return w.header }
func (w *response) WriteHeader(status int)      { w.status = status }
func (w *response) Write(p []byte) (int, error) { return w.body.Write(p) }
