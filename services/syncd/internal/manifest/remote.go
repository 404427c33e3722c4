package manifest

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/admission"
	"github.com/podplane/podplane/services/syncd/internal/decode"
)

// Remote says where manifests are fetched from; without URL there is no such source.
type Remote struct {
	// URL of http or https. Name and password in it are used and never shown.
	URL string
	// Header are lines "Name: value" that go with each request. They are never shown.
	Header []string
	// CA is a file of certificates to trust instead of the system's; it is read at each request, so that it may change.
	CA string
	// Rescan is the time between two requests, 20 s by default.
	Rescan time.Duration
}

// fetchTimeout bounds a request, its answer included.
const fetchTimeout = 10 * time.Second

// Check says what is wrong with the settings, without repeating what is in them.
func (r Remote) Check() error {
	if r.URL == "" {
		return nil
	}
	u, err := url.Parse(r.URL)
	if err != nil {
		return fault.New(fault.Invalid, "the URL can't be read")
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return fault.New(fault.Invalid, "must be of the form http://host/path or https://host/path")
	}
	_, err = headers(r.Header)
	return err
}

func headers(lines []string) (http.Header, error) {
	h := make(http.Header, len(lines))
	for i, line := range lines {
		name, value, ok := strings.Cut(line, ":")
		if name = strings.TrimSpace(name); !ok || name == "" || strings.ContainsAny(name, " \t\r\n") || strings.ContainsAny(value, "\r\n") {
			return nil, fault.New(fault.Invalid, "header %d is not of the form Name: value", i+1)
		}
		h.Add(name, strings.TrimSpace(value))
	}
	return h, nil
}

// fetched is how a request ended.
type fetched struct {
	// same: the answer is the last one.
	same   bool
	wishes []wish
	etag   string
	sum    [sha256.Size]byte
	err    error
	// kind is the same for errors that mean the same.
	kind string
}

// remote is the source behind a URL. Its fields belong to the goroutine of the Source; a request runs beside it.
type remote struct {
	opts   Remote
	from   Origin // the URL without name and password
	node   admission.Node
	header http.Header

	results chan fetched // of the request under way
	cancel  context.CancelFunc
	due     time.Time
	// last is the last good answer, answered says that there was one.
	last     fetched
	answered bool
}

func newRemote(opts Remote, node admission.Node) (*remote, error) {
	if err := opts.Check(); err != nil || opts.URL == "" {
		return nil, err
	}
	if opts.Rescan <= 0 {
		opts.Rescan = defaultRescan
	}
	u, err := url.Parse(opts.URL)
	if err != nil {
		return nil, err
	}
	u.User = nil
	h, err := headers(opts.Header)
	return &remote{opts: opts, from: Origin{Source: podplanev1.Source_SOURCE_HTTP, Path: u.String()}, node: node, header: h}, err
}

// begin sends a request unless one is under way or it is too early.
func (r *remote) begin(ctx context.Context, now time.Time) {
	if r == nil || r.results != nil || now.Before(r.due) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	results, last := make(chan fetched, 1), r.last
	r.results, r.cancel, r.due = results, cancel, now.Add(r.opts.Rescan)
	go func() { results <- r.fetch(ctx, last) }() // ends with its context
}

// done takes the end of the request.
func (r *remote) done(f fetched) {
	r.cancel()
	r.results = nil
	if f.err == nil && !f.same {
		r.last, r.answered = f, true
	}
}

// forget ends the request and drops what is known: another replica does the work now.
func (r *remote) forget() {
	if r == nil {
		return
	}
	if r.results != nil {
		r.cancel()
		r.results = nil
	}
	r.last, r.answered, r.due = fetched{}, false, time.Time{}
}

// pending is where the end of the request under way comes from; nil without one.
func (r *remote) pending() <-chan fetched {
	if r == nil {
		return nil
	}
	return r.results
}

// fetch asks once.
func (r *remote) fetch(ctx context.Context, last fetched) fetched {
	data, etag, err := r.get(ctx, last.etag)
	if errors.Is(err, errNotModified) {
		return fetched{same: true}
	}
	f := fetched{etag: etag, sum: sha256.Sum256(data), err: err}
	var status statusError
	switch {
	case errors.As(err, &status):
		f.kind = status.Error()
	case err != nil:
		f.kind = "no answer"
	case last.sum == f.sum:
		return fetched{same: true}
	default:
		f.wishes, f.err = r.read(data)
		if f.err != nil {
			f.kind = f.err.Error()
		}
		if slices.ContainsFunc(f.wishes, func(w wish) bool { return w.err != nil }) {
			f.etag, f.sum = "", [sha256.Size]byte{} // what the node lacks for it may be there the next time
		}
	}
	if f.err != nil {
		f.err = fmt.Errorf("fetch manifests from %s: %w", r.from, f.err)
	}
	return f
}

var errNotModified = errors.New("not modified")

// statusError is an answer that is none.
type statusError int

func (s statusError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("the server answered %d %s", int(s), http.StatusText(int(s))))
}

func (r *remote) get(ctx context.Context, etag string) (data []byte, newTag string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.opts.URL, http.NoBody)
	if err != nil {
		return nil, "", hideURL(err)
	}
	req.Header = r.header.Clone()
	if req.Header.Get("Accept") == "" {
		req.Header.Set("Accept", "application/json, application/yaml, */*")
	}
	if etag != "" {
		req.Header.Set("If-None-Match", etag)
	}
	if host := req.Header.Get("Host"); host != "" {
		req.Host = host
	}
	client, err := r.client()
	if err != nil {
		return nil, "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, "", hideURL(err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end or given up
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotModified:
		return nil, "", errNotModified
	default:
		return nil, "", statusError(resp.StatusCode)
	}
	data, err = io.ReadAll(io.LimitReader(resp.Body, MaxBytes+1))
	if err != nil {
		return nil, "", fmt.Errorf("read the answer: %w", err)
	}
	return data, resp.Header.Get("ETag"), nil
}

// hideURL takes the URL, which may hold a password, out of an error of package http.
func hideURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// maxRedirects as in browsers' habits, though one is already much.
const maxRedirects = 5

// client is made for each request: requests are rare, and a connection that nobody uses would cost more.
func (r *remote) client() (*http.Client, error) {
	t := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}}
	if r.opts.CA != "" {
		pem, err := os.ReadFile(r.opts.CA)
		if err != nil {
			return nil, fmt.Errorf("read the certificates to trust: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no certificate", r.opts.CA)
		}
		t.TLSClientConfig.RootCAs = pool
	}
	return &http.Client{Transport: t, CheckRedirect: stayHome}, nil
}

// stayHome follows redirects only where the headers of the request, which may be secrets, may go.
func stayHome(req *http.Request, via []*http.Request) error {
	first := via[0].URL
	switch {
	case len(via) > maxRedirects:
		return fmt.Errorf("more than %d redirects", maxRedirects)
	case req.URL.Host != first.Host:
		return errors.New("the server redirects to another host, where the headers of the request must not go")
	case first.Scheme == "https" && req.URL.Scheme != "https":
		return errors.New("the server redirects from https to http")
	}
	return nil
}

// read makes pods of an answer. Items that can't be read don't spoil the others.
func (r *remote) read(data []byte) ([]wish, error) {
	if len(data) > MaxBytes {
		return nil, fault.New(fault.TooLarge, "the answer has more than %d bytes", MaxBytes)
	}
	items, err := decode.Pods(decode.Input{Data: data, Limit: MaxBytes})
	if err != nil {
		return nil, err
	}
	wishes := make([]wish, 0, len(items))
	for _, item := range items {
		w := wish{from: r.from, place: r.from.Path}
		if item.Place != "" {
			w.place += " " + item.Place
		}
		if w.pod, w.err = static(r.from, w.place, decode.Input{Data: item.Data, Limit: MaxBytes, RequireKind: item.Place == ""}, r.node); w.err != nil && item.Name != "" {
			namespace := item.Namespace
			if namespace == "" {
				namespace = "default"
			}
			w.broken = namespace + "/" + fullName(item.Name, r.node)
		}
		wishes = append(wishes, w)
	}
	return wishes, nil
}
