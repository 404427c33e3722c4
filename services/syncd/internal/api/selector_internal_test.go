package api

import (
	"testing"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/services/syncd/internal/watchcache"
)

// FuzzSelector looks for selectors that are taken although they name an unknown field, and for crashes.
func FuzzSelector(f *testing.F) {
	f.Add("app=web,tier!=db", "metadata.name=web")
	f.Add("app in (a,b),!x", "status.phase!=Running,spec.nodeName=n")
	f.Add("a notin (", `metadata.name=a\,b`)
	o := &watchcache.Object{Labels: map[string]string{"app": "web"}, Fields: map[string]string{"metadata.name": "web"}}
	f.Fuzz(func(t *testing.T, label, field string) {
		match, err := selector(label, field, []string{"metadata.name", "status.phase", "spec.nodeName"})
		if err != nil {
			if !fault.Is(err, fault.BadRequest) {
				t.Fatalf("%v: %v", fault.KindOf(err), err)
			}
			return
		}
		if match != nil {
			match(o)
		}
	})
}

// FuzzToken looks for continue tokens that crash the server or come back changed.
func FuzzToken(f *testing.F) {
	f.Add("default", "web")
	f.Add("", "\x00\xff")
	f.Fuzz(func(t *testing.T, namespace, name string) {
		if _, err := parseToken(name); err != nil && !fault.Is(err, fault.BadRequest) {
			t.Fatal(err)
		}
		token, err := (position{namespace, name}).token()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseToken(token); err != nil {
			t.Fatal(err)
		}
	})
}
