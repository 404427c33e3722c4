package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func code(err error) int {
	var exit exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return int(exit)
	}
	return 1
}

func TestSeqStopsAtTheFirstFailure(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	args := strings.Fields("seq write " + file + " x -- exists " + file + " -- exit 3 -- rm " + file)
	if got := code(run(t.Context(), args)); got != 3 {
		t.Errorf("exit code %d, want 3", got)
	}
	if got := code(run(t.Context(), []string{"exists", file})); got != 0 {
		t.Errorf("what follows a failure was run")
	}
}

func TestFailUntilCountsRuns(t *testing.T) {
	file := filepath.Join(t.TempDir(), "runs")
	for i, want := range []int{1, 1, 0, 0} {
		if got := code(run(t.Context(), []string{"fail-until", file, "2"})); got != want {
			t.Errorf("run %d: exit code %d, want %d", i+1, got, want)
		}
	}
}

func TestUnknownCommand(t *testing.T) {
	if got := code(run(t.Context(), []string{"no-such-command"})); got != 2 {
		t.Errorf("exit code %d, want 2", got)
	}
}

func TestSize(t *testing.T) {
	for s, want := range map[string]int64{"7": 7, "2Ki": 2 << 10, "64Mi": 64 << 20, "1Gi": 1 << 30} {
		if got, err := size(s); err != nil || got != want {
			t.Errorf("size of %s is %d, %v", s, got, err)
		}
	}
	if _, err := size("1Ti"); err == nil {
		t.Error("an unknown suffix is taken")
	}
}

func TestHealthFollowsFlagsThenPosts(t *testing.T) {
	s := &server{start: time.Now(), healthyAfter: time.Hour}
	routes := s.routes()
	ask := func(method, target string) int {
		w := httptest.NewRecorder()
		routes.ServeHTTP(w, httptest.NewRequest(method, target, nil))
		return w.Code
	}
	for _, step := range []struct {
		method, target string
		want           int
	}{
		{http.MethodGet, "/healthz", http.StatusServiceUnavailable},
		{http.MethodPost, "/healthz?ok=true", http.StatusOK},
		{http.MethodGet, "/healthz", http.StatusOK},
		{http.MethodGet, "/readyz", http.StatusServiceUnavailable},
		{http.MethodPost, "/healthz?ok=perhaps", http.StatusBadRequest},
		{http.MethodPost, "/healthz?ok=false", http.StatusServiceUnavailable},
		{http.MethodGet, "/healthz", http.StatusServiceUnavailable},
	} {
		if got := ask(step.method, step.target); got != step.want {
			t.Errorf("%s %s: status %d, want %d", step.method, step.target, got, step.want)
		}
	}
}
