package front_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestQueryParametersAreNamedAsTheClientWroteThem refuses what can't be read, and says what is allowed.
func TestQueryParametersAreNamedAsTheClientWroteThem(t *testing.T) {
	h := newFront(t, &backend{})
	for query, want := range map[string]string{
		"tailLines=many":                 `tailLines="many": must be a whole number`,
		"limitBytes=1&tailLines=1.5":     `tailLines="1.5": must be a whole number`,
		"limitBytes=9999999999999999999": `limitBytes="9999999999999999999": must be a smaller number`,
		"follow=perhaps":                 `follow="perhaps": must be true or false`,
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, request(t, http.MethodGet, pods+"/a/log?"+query, ""))
		if s := status(t, w); w.Code != http.StatusBadRequest || !strings.Contains(s.Message, want) {
			t.Errorf("%s: %d %q, want 400 with %s", query, w.Code, s.Message, want)
		}
	}
}
