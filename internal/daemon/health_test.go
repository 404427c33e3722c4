package daemon_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/podplane/podplane/internal/daemon"
)

func TestReadyz(t *testing.T) {
	h := &daemon.Health{}
	var failing error
	h.AddCheck("bus", func(context.Context) error { return nil })
	h.AddCheck("cri", func(context.Context) error { return errors.New("replaced") })
	h.AddCheck("cri", func(context.Context) error { return failing })
	get := func(path string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		return w.Code, w.Body.String()
	}
	if code, body := get("/readyz"); code != 200 || body != "ok\n" {
		t.Errorf("%d %q", code, body)
	}
	if code, body := get("/readyz?verbose"); code != 200 || body != "[+]bus ok\n[+]cri ok\nok\n" {
		t.Errorf("%d %q", code, body)
	}
	failing = errors.New("no answer")
	if code, body := get("/readyz"); code != 503 || body != "[-]cri: no answer\n" {
		t.Errorf("%d %q", code, body)
	}
	if ready, message := h.Ready(t.Context()); ready || message != "cri: no answer" {
		t.Errorf("%v %q", ready, message)
	}
}
