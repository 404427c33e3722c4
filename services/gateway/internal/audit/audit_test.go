package audit_test

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/podplane/podplane/services/gateway/internal/audit"
)

func open(t *testing.T, path string, o audit.Options) *audit.Log {
	t.Helper()
	o.Failed = func(err error) { t.Error(err) }
	l, err := audit.Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func lines(t *testing.T, paths ...string) (out []audit.Entry) {
	t.Helper()
	for _, p := range paths {
		f, err := os.Open(p)
		if err != nil {
			t.Fatal(err)
		}
		for s := bufio.NewScanner(f); s.Scan(); {
			var e audit.Entry
			if err := json.Unmarshal(s.Bytes(), &e); err != nil {
				t.Errorf("%s: %q: %v", p, s.Text(), err)
			}
			out = append(out, e)
		}
		_ = f.Close()
	}
	return out
}

// TestReplicasShareAndRotate has two replicas write at once: no line is lost or torn, and no file passes its size.
func TestReplicasShareAndRotate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir", "audit.log")
	const writers, each = 8, 100
	o := audit.Options{MaxBytes: 32 << 10, Keep: 20}
	logs := []*audit.Log{open(t, path, o), open(t, path, o)}
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				logs[w%2].Write(audit.Entry{User: "u" + strconv.Itoa(w), Name: strconv.Itoa(i), Verb: "get"})
			}
		})
	}
	wg.Wait()
	files, err := filepath.Glob(path + "*")
	if err != nil {
		t.Fatal(err)
	}
	var data []string
	for _, f := range files {
		if strings.HasSuffix(f, ".lock") {
			continue
		}
		info, err := os.Stat(f)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", f, info, err)
		}
		if info.Size() > o.MaxBytes+4<<10 { // a replica may have its line under way while another rotates
			t.Errorf("%s has %d bytes", f, info.Size())
		}
		data = append(data, f)
	}
	if len(data) < 3 {
		t.Errorf("only %v", data)
	}
	seen := map[string]bool{}
	for _, e := range lines(t, data...) {
		seen[e.User+"/"+e.Name] = true
	}
	if len(seen) != writers*each {
		t.Errorf("%d lines, want %d", len(seen), writers*each)
	}
}

func TestKeepsAtMostSoMany(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, path, audit.Options{MaxBytes: 200, Keep: 2})
	for i := range 50 {
		l.Write(audit.Entry{User: "u", Name: strconv.Itoa(i)})
	}
	files, _ := filepath.Glob(path + "*")
	if len(files) != 4 { // the file, two old ones and the lock
		t.Errorf("%v", files)
	}
	if last := lines(t, path); len(last) == 0 || last[len(last)-1].Name != "49" {
		t.Errorf("%+v", last)
	}
}

func TestMovedAwayAndCut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, path, audit.Options{})
	l.Write(audit.Entry{User: "first"})
	if err := os.Rename(path, path+".moved"); err != nil {
		t.Fatal(err)
	}
	l.Write(audit.Entry{User: "second", UserAgent: strings.Repeat("é", 1000), Name: "a\nb"})
	got := lines(t, path)
	if len(got) != 1 || got[0].User != "second" || len(got[0].UserAgent) > audit.MaxField+3 || strings.Contains(got[0].UserAgent, "\ufffd") || got[0].Name != "a\nb" {
		t.Errorf("%+v", got)
	}
	if old := lines(t, path+".moved"); len(old) != 1 || old[0].User != "first" {
		t.Errorf("%+v", old)
	}
}
