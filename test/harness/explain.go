package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// explainTimeout bounds the questions of Explain, which is asked when something hangs already.
const explainTimeout = 5 * time.Second

// Explain says, for the message of a failed test, all that the services know about a pod: its record with what its worker waits for, its volumes,
// its lifecycle events and its Events. What can't be asked is said instead.
func (s *Stack) Explain(ctx context.Context, namespace, name string) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), explainTimeout)
	defer cancel()
	var b strings.Builder
	for _, q := range []struct{ what, path, list string }{
		{"pod", podsPath(namespace) + "/" + name, ""},
		{"Events", "/api/v1/namespaces/" + namespace + "/events?fieldSelector=involvedObject.name=" + name, "items"},
		{"volumes", "/podplane/v1/volumes?namespace=" + namespace + "&name=" + name, ""},
		{"lifecycle", "/podplane/v1/lifecycle?namespace=" + namespace + "&name=" + name, ""},
		{"why", "/podplane/v1/why?namespace=" + namespace + "&pod=" + name, ""},
		{"services", "/podplane/v1/services", ""},
	} {
		a, err := s.Call(ctx, http.MethodGet, q.path, "", nil)
		if err != nil {
			fmt.Fprintf(&b, "--- %s: %v\n", q.what, err)
			continue
		}
		fmt.Fprintf(&b, "--- %s: %d\n", q.what, a.Code)
		for _, line := range linesOf(a.Body, q.list) {
			fmt.Fprintf(&b, "%s\n", line)
		}
	}
	return b.String()
}

// linesOf are a list's items, one a line, or else the body's lines.
func linesOf(body []byte, list string) [][]byte {
	var object map[string]json.RawMessage
	var items []json.RawMessage
	if list == "" || json.Unmarshal(body, &object) != nil || json.Unmarshal(object[list], &items) != nil {
		return bytes.Split(bytes.TrimSpace(body), []byte("\n"))
	}
	lines := make([][]byte, len(items))
	for i, item := range items {
		lines[i] = item
	}
	return lines
}
