package tokens_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/tokens"
)

func parse(t *testing.T, file string) *tokens.Set {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s, err := tokens.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestLifeOfAToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "new", "tokens.yaml")
	secret, entry, err := tokens.Create(file, "alice", []string{"dev", "ops"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := tokens.Create(file, "bob", nil, 0)
	if err != nil || other == secret {
		t.Fatal(other == secret, err)
	}
	data, err := os.ReadFile(file)
	if err != nil || strings.Contains(string(data), secret) || strings.Contains(string(data), secret[len(secret)-20:]) {
		t.Errorf("the file holds the token: %s %v", data, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v %v", info, err)
	}
	set := parse(t, file)
	now := time.Now()
	if got, err := set.Lookup(secret, now); err != nil || got.User != "alice" || len(got.Groups) != 2 || got.ID != entry.ID {
		t.Errorf("%+v %v", got, err)
	}
	if got, err := set.Lookup(other, now); err != nil || got.User != "bob" {
		t.Errorf("%+v %v", got, err)
	}
	for what, bad := range map[string]string{
		"cut": secret[:len(secret)-1], "longer": secret + "x", "upper": strings.ToUpper(secret), "empty": "", "prefix": "ppt_", "no secret": "ppt_" + entry.ID + "_",
		"another's secret": secret[:strings.LastIndex(secret, "_")] + other[strings.LastIndex(other, "_"):], "unknown": tokens.Local(), "huge": strings.Repeat("ppt_a_", 1<<16),
	} {
		if got, err := set.Lookup(bad, now); !fault.Is(err, fault.Unauthenticated) || got.User != "" || (bad != "" && strings.Contains(err.Error(), bad)) {
			t.Errorf("%s: %+v %v", what, got, err)
		}
	}
	if _, err := set.Lookup(secret, now.Add(time.Hour)); !fault.Is(err, fault.Unauthenticated) || !strings.Contains(err.Error(), "expired") {
		t.Errorf("expired: %v", err)
	}
	if err := os.Chmod(file, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := tokens.Revoke(file, entry.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := parse(t, file).Lookup(secret, now); !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("revoked: %v", err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("the mode was not kept: %v %v", info, err)
	}
	if err := tokens.Revoke(file, entry.ID); !fault.Is(err, fault.NotFound) {
		t.Errorf("revoked twice: %v", err)
	}
	if list, err := tokens.List(file); err != nil || len(list) != 1 || list[0].User != "bob" {
		t.Errorf("%+v %v", list, err)
	}
}

func TestManyAtOnceLoseNone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens.yaml")
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if _, _, err := tokens.Create(file, fmt.Sprintf("u%d", i), nil, 0); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if list, err := tokens.List(file); err != nil || len(list) != 20 {
		t.Errorf("%d %v", len(list), err)
	}
}

func TestNamesAndFilesThatAreRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens.yaml")
	for _, name := range []string{"", "system:masters", "a b", "a\nb", "*", strings.Repeat("x", 254), "a\x00"} {
		if _, _, err := tokens.Create(file, name, nil, 0); !fault.Is(err, fault.Invalid) {
			t.Errorf("user %q: %v", name, err)
		}
		if _, _, err := tokens.Create(file, "a", []string{name}, 0); !fault.Is(err, fault.Invalid) {
			t.Errorf("group %q: %v", name, err)
		}
	}
	if _, _, err := tokens.Create(file, "a", nil, -time.Second); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
	hash := "sha256:" + strings.Repeat("0", 64)
	for _, text := range []string{
		"tokens: [{id: a, user: u, hash: '" + hash + "', role: admin}]", "other: 1", "[]", "tokens: [{id: a, user: u, hash: ''}]", "tokens: [{id: a, user: u}]",
		"tokens: [{id: a, user: u, hash: '" + hash + "'}, {id: a, user: v, hash: '" + hash + "'}]", "tokens: [{id: '', user: u, hash: '" + hash + "'}]",
		"tokens: [{id: a, user: 'system:x', hash: '" + hash + "'}]", "tokens: [{id: a, user: u, groups: ['*'], hash: '" + hash + "'}]",
		"tokens: [{id: a, user: u, hash: 'sha256:" + strings.Repeat("z", 64) + "'}]", "tokens: []\ntokens: []",
	} {
		if _, err := tokens.Parse([]byte(text)); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if s, err := tokens.Parse(nil); err != nil {
		t.Error(err)
	} else if _, err := s.Lookup(tokens.Local(), time.Now()); !fault.Is(err, fault.Unauthenticated) {
		t.Error(err)
	}
}

// FuzzTokens looks for input that panics, or lets somebody in whom the file does not name.
func FuzzTokens(f *testing.F) {
	f.Add("tokens: [{id: a, user: u, hash: 'sha256:"+strings.Repeat("0", 64)+"'}]", "ppt_a_b")
	f.Add("tokens:\n- id: a\n", "ppt__")
	f.Fuzz(func(t *testing.T, file, token string) {
		s, err := tokens.Parse([]byte(file))
		if err != nil {
			return
		}
		if got, err := s.Lookup(token, time.Now()); err == nil && (got.User == "" || !strings.Contains(file, got.ID)) {
			t.Errorf("%q is %+v", token, got)
		}
	})
}
