package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// run runs a command of the line and gives its error's text.
func run(t *testing.T, server string, args ...string) string {
	t.Helper()
	for _, cmd := range Commands() {
		if cmd.Name() != args[0] {
			continue
		}
		cmd.SetArgs(append(args[1:], "--server", server))
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			return err.Error()
		}
		return ""
	}
	t.Fatalf("there is no command %s", args[0])
	return ""
}

// TestErrorsSayWhatToDo runs commands against a server that has no pods, and whose watches never tell of any.
func TestErrorsSayWhatToDo(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "true" {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		_, _ = io.WriteString(w, `{"kind":"PodList","metadata":{"resourceVersion":"1"},"items":[]}`)
	}))
	defer s.Close()
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"get", "pods", "web", "-A"}, "--namespace"},
		{[]string{"get", "pods", "web", "-w"}, "--field-selector metadata.name=web"},
		{[]string{"get", "things"}, "known: pods"},
		{[]string{"wait", "web", "--timeout", "50ms"}, "pod default/web is not Ready in time: no such pod"},
		{[]string{"delete", "pod"}, "podplane delete pod web"},
		{[]string{"delete", "pod", "web", "-f", "x"}, "not both"},
	} {
		if got := run(t, s.URL, tc.args...); !strings.Contains(got, tc.want) {
			t.Errorf("%v: %q, want %q in it", tc.args, got, tc.want)
		}
	}
	if got := run(t, "http://127.0.0.1:1", "get", "pods"); !strings.Contains(got, "is Podplane up?") {
		t.Errorf("nobody listens: %q", got)
	}
}
