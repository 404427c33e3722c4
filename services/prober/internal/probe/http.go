package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

const maxRedirects = 10

var errTooManyRedirects = errors.New("stopped after 10 redirects")

func (p *Prober) http(ctx context.Context, s *HTTP, t Target) Result {
	req, err := request(ctx, s, or(s.Host, t.PodIP))
	if err != nil {
		return unknown(err)
	}
	client := http.Client{Transport: p.transport, CheckRedirect: followOnSameHost}
	resp, err := client.Do(req)
	if err != nil {
		return failed(err)
	}
	defer resp.Body.Close()
	// The body does not count, but that it comes does. A server that ends it because we gave up makes it look complete.
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxRead))
	if err = cmp.Or(err, ctx.Err()); err != nil {
		return failed(fmt.Errorf("read the response's body: %w", err))
	}
	switch code := resp.StatusCode; {
	case code >= http.StatusOK && code < http.StatusMultipleChoices:
		return success("")
	case code >= http.StatusMultipleChoices && code < http.StatusBadRequest:
		r := success(fmt.Sprintf("Probe terminated redirects, statuscode: %d", code))
		r.Warning = true
		return r
	default:
		return failure(fmt.Sprintf("HTTP probe failed with statuscode: %d", code))
	}
}

// followOnSameHost ends at a redirect that leads to another host: what that one answers says nothing about this one.
func followOnSameHost(req *http.Request, via []*http.Request) error {
	if req.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(via) >= maxRedirects {
		return errTooManyRedirects
	}
	return nil
}

func request(ctx context.Context, s *HTTP, host string) (*http.Request, error) {
	u, err := url.Parse(s.Path)
	if err != nil { // sent as it is, as the server may like it
		u = &url.URL{Path: s.Path}
	}
	u.Scheme, u.Host = strings.ToLower(s.Scheme), address(host, s.Port)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	req.Header = s.Header.Clone()
	if req.Header == nil {
		req.Header = http.Header{}
	}
	if host := req.Header.Get("Host"); host != "" {
		req.Host = host
		req.Header.Del("Host")
	}
	// An empty value is a wish to send none.
	setDefault(req.Header, "User-Agent", userAgent)
	setDefault(req.Header, "Accept", "*/*")
	return req, nil
}

func setDefault(h http.Header, name, value string) {
	switch _, set := h[name]; {
	case !set:
		h.Set(name, value)
	case h.Get(name) == "" && name != "User-Agent": // an empty User-Agent already means none
		h.Del(name)
	}
}
