// Package rest is the command line's client of Podplane's REST API.
//
// It speaks HTTP or HTTPS to gateway and keeps Kubernetes objects as the bytes
// they are: what the API answers is what the user sees. Errors are Kubernetes'
// Status objects turned into sentences.
package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DefaultServer is where gateway listens unless it was told otherwise.
const DefaultServer = "http://127.0.0.1:8080"

// maxAnswer bounds what Do reads into memory.
const maxAnswer = 256 << 20

// Client calls one gateway.
type Client struct {
	base  *url.URL
	token string
	http  *http.Client
}

// New returns a client of the gateway at server, such as "http://127.0.0.1:8080".
func New(server string, o Options) (*Client, error) {
	u, err := url.Parse(server)
	if err != nil {
		return nil, fmt.Errorf("parse server address %q: %w", server, err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("server address %q: want http://host:port", server)
	}
	token, err := o.token()
	if err != nil {
		return nil, err
	}
	if err := o.plain(u, token); err != nil {
		return nil, err
	}
	secure, err := o.secure()
	if err != nil {
		return nil, err
	}
	return &Client{base: u, token: token, http: &http.Client{Transport: &http.Transport{
		DialContext:     (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSClientConfig: secure, ForceAttemptHTTP2: true,
		ResponseHeaderTimeout: 60 * time.Second,
	}}}, nil
}

// Request is one call. Query and Body may be empty.
type Request struct {
	Method      string
	Path        string
	Query       url.Values
	ContentType string
	Body        []byte
}

// StatusError is an answer that is not a success.
type StatusError struct {
	Status metav1.Status
	Code   int
}

func (e *StatusError) Error() string {
	msg := e.Status.Message
	if msg == "" {
		msg = http.StatusText(e.Code)
	}
	return fmt.Sprintf("%s (%d %s)", msg, e.Code, e.Status.Reason)
}

// IsNotFound says whether err is a 404 of the API.
func IsNotFound(err error) bool { return hasCode(err, http.StatusNotFound) }

// IsForbidden says whether err is a refusal of something that the caller, or anybody, may not do.
func IsForbidden(err error) bool { return hasCode(err, http.StatusForbidden) }

// IsAlreadyExists says whether err says that a name is taken.
func IsAlreadyExists(err error) bool { return hasCode(err, http.StatusConflict) }

func hasCode(err error, code int) bool {
	var se *StatusError
	return errors.As(err, &se) && se.Code == code
}

// Do calls and returns the whole body of a successful answer.
func (c *Client) Do(ctx context.Context, r Request) ([]byte, error) {
	body, err := c.Stream(ctx, r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	data, err := io.ReadAll(io.LimitReader(body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read answer to %s %s: %w", r.Method, r.Path, err)
	}
	return data, nil
}

// Stream calls and returns the body of a successful answer as it comes.
// The caller closes it; cancelling ctx ends it.
func (c *Client) Stream(ctx context.Context, r Request) (io.ReadCloser, error) {
	u := c.base.JoinPath(r.Path)
	u.RawQuery = r.Query.Encode()
	req, err := http.NewRequestWithContext(ctx, r.Method, u.String(), bytes.NewReader(r.Body))
	if err != nil {
		return nil, fmt.Errorf("build request %s %s: %w", r.Method, r.Path, err)
	}
	if r.ContentType != "" {
		req.Header.Set("Content-Type", r.ContentType)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w; is Podplane up? start it with `podplane up`, or name its address with --server", r.Method, c.base.JoinPath(r.Path), err)
	}
	if resp.StatusCode/100 == 2 {
		return resp.Body, nil
	}
	defer func() { _ = resp.Body.Close() }()
	data, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	se := &StatusError{Code: resp.StatusCode}
	if json.Unmarshal(data, &se.Status) != nil || se.Status.Message == "" {
		se.Status.Message = strings.TrimSpace(string(data))
	}
	return nil, se
}

// Into calls and decodes the JSON answer into out.
func (c *Client) Into(ctx context.Context, r Request, out any) error {
	data, err := c.Do(ctx, r)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("decode answer to %s %s: %w", r.Method, r.Path, err)
	}
	return nil
}
