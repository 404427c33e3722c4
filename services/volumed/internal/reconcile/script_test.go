package reconcile_test

import (
	"bufio"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podplane/podplane/services/volumed/internal/reconcile"
)

var rewrite = flag.Bool("rewrite", false, "write what the machine does into the scripts")

// TestScripts runs the scripts in testdata. A line that starts with "> " is what the machine decided after the line
// before it. Commands:
//
//	pod <name>=<plugin>[@<object>] ...   the pod's record is there, with these volumes
//	gone                                 the pod's record is not there (any more)
//	terminated                           no container runs and none will
//	unsynced | synced                    the buckets have not, or have been read completely
//	object <key> <revision>              an object was seen; revision 0: it was deleted
//	ok <volume> [revision]               the volume's set-up succeeded
//	fail <volume> <error>                the volume's set-up failed
//	down [<volume>=<error>]              the teardown ended
//	wait <duration>                      time passes
//	restart | reboot                     another process begins from the record
//	look                                 decide again
func TestScripts(t *testing.T) {
	t.Parallel()
	scripts, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, path := range scripts {
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			got := runScript(t, string(want))
			if *rewrite {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(want) {
				t.Errorf("the machine does something else than the script says; it does:\n%s", got)
			}
		})
	}
}

type world struct {
	pod     reconcile.Pod
	in      reconcile.Input
	objects map[string]uint64
	now     time.Time
}

func runScript(t *testing.T, text string) string {
	t.Helper()
	w := &world{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), objects: map[string]uint64{}}
	w.in = reconcile.Input{Synced: true, Revision: func(o string) uint64 { return w.objects[o] }}
	var out strings.Builder
	for sc := bufio.NewScanner(strings.NewReader(text)); sc.Scan(); {
		line := sc.Text()
		if strings.HasPrefix(line, "> ") {
			continue
		}
		out.WriteString(line + "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := w.do(strings.Fields(line)); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		before := w.pod.Phase
		d := reconcile.Reconcile(&w.pod, w.in, w.now)
		if order(w.pod.Phase) < order(before) {
			t.Fatalf("%q: phase went from %s back to %s", line, before, w.pod.Phase)
		}
		out.WriteString(w.describe(d))
	}
	return out.String()
}

func order[T ~int32](p T) int32 { return int32(p) }

func (w *world) do(f []string) error {
	switch f[0] {
	case "pod":
		w.in.Wanted = true
		for _, s := range f[1:] {
			name, plugin, _ := strings.Cut(s, "=")
			plugin, object, _ := strings.Cut(plugin, "@")
			w.in.Wishes = append(w.in.Wishes, reconcile.Wish{Name: name, Plugin: plugin, Object: object})
		}
	case "gone":
		w.in.Wanted, w.in.Wishes = false, nil
	case "terminated":
		w.in.Terminated = true
	case "unsynced", "synced":
		w.in.Synced = f[0] == "synced"
	case "object":
		var rev uint64
		if _, err := fmt.Sscan(f[2], &rev); err != nil {
			return err
		}
		w.objects[f[1]] = rev
	case "ok":
		r := reconcile.SetupResult{HostPath: "/v/" + f[1]}
		if len(f) > 2 {
			if _, err := fmt.Sscan(f[2], &r.Revision); err != nil {
				return err
			}
		}
		reconcile.SetupDone(&w.pod, f[1], r, w.now)
	case "fail":
		reconcile.SetupDone(&w.pod, f[1], reconcile.SetupResult{Error: strings.Join(f[2:], " ")}, w.now)
	case "down":
		errs := map[string]string{}
		for _, s := range f[1:] {
			name, e, _ := strings.Cut(s, "=")
			errs[name] = e
		}
		reconcile.TeardownDone(&w.pod, errs, "", w.now)
	case "wait":
		d, err := time.ParseDuration(f[1])
		if err != nil {
			return err
		}
		w.now = w.now.Add(d)
	case "restart", "reboot":
		w.pod = reconcile.Restore(w.pod.Record(), f[0] == "restart", w.now)
	case "look":
	default:
		return fmt.Errorf("no such command")
	}
	return nil
}

func (w *world) describe(d reconcile.Decision) string {
	var lines []string
	if len(d.Setup) > 0 {
		lines = append(lines, "set up "+strings.Join(d.Setup, " "))
	}
	if d.Cancel {
		lines = append(lines, "cancel")
	}
	if d.Teardown {
		lines = append(lines, "tear down")
	}
	if d.Publish {
		lines = append(lines, "publish "+w.state())
	}
	if d.Forget {
		lines = append(lines, "forget")
	}
	if d.Remove {
		lines = append(lines, "remove the record")
	}
	if !d.Wake.IsZero() {
		lines = append(lines, "wake in "+d.Wake.Sub(w.now).String())
	}
	if len(lines) == 0 {
		lines = append(lines, "nothing")
	}
	return "> " + strings.Join(lines, "\n> ") + "\n"
}

func (w *world) state() string {
	r := w.pod.Record()
	byName := map[string]string{}
	for _, v := range r.GetVolumes() {
		s := short(v.GetPhase().String())
		if v.GetHostPath() != "" {
			s += " " + v.GetHostPath()
		}
		if v.GetError() != "" {
			s += fmt.Sprintf(" %q", v.GetError())
		}
		byName[v.GetName()] = s
	}
	out := short(r.GetPhase().String())
	for _, n := range slices.Sorted(maps.Keys(byName)) {
		out += "; " + n + " " + byName[n]
	}
	return out
}

func short(s string) string { return strings.TrimPrefix(s, "VOLUME_PHASE_") }
