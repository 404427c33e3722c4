package arch_test

import (
	"go/ast"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// cores are the packages that decide: state in, decision out. They are where the tables and fuzzers are, and they stay testable only as
// long as they touch nothing.
var cores = []string{
	"services/syncd/internal/plan", "services/syncd/internal/status", "services/syncd/internal/admission", "services/syncd/internal/decode",
	"services/syncd/internal/rawjson", "services/syncd/internal/chain", "services/pleg/internal/diff",
	"services/volumed/internal/reconcile", "services/evictd/internal/policy", "services/prober/internal/verdict",
	"services/prober/internal/schedule",
}

// effects are the imports by which a package touches the world.
var effects = []string{
	"os", "os/exec", "os/signal", "io/ioutil", "net", "net/http", "net/rpc", "syscall", "golang.org/x/sys", "log", "log/slog", "sync", "context",
	"google.golang.org/grpc", "go.opentelemetry.io", "github.com/prometheus", "github.com/fsnotify", "k8s.io/utils/clock", "math/rand", "crypto/rand",
	"github.com/opencontainers/cgroups", "k8s.io/mount-utils", "github.com/moby/sys",
	module + "internal/bus", module + "internal/cri", module + "internal/daemon", module + "internal/rpc", module + "internal/telemetry",
	module + "internal/events", module + "internal/conf", module + "internal/testkit",
}

// pure are packages below the effects that only hold values.
var pure = []string{"google.golang.org/grpc/codes"}

// clock are the functions of package time that look at the clock or wait.
var clock = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

func TestCoresHaveNoEffects(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range files(t) {
		if f.test || !slices.Contains(cores, f.dir()) {
			continue
		}
		seen[f.dir()] = true
		for _, name := range f.imports {
			if slices.Contains(pure, name) {
				continue
			}
			for _, e := range effects {
				if name == e || (strings.Contains(e, ".") && within(name, e)) {
					t.Errorf("%s imports %s: a core decides and does nothing", f.path, name)
				}
			}
		}
		for _, call := range clockCalls(f) {
			t.Errorf("%s uses time.%s: a core is told the time", f.path, call)
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if _, ok := n.(*ast.GoStmt); ok {
				t.Errorf("%s:%d starts a goroutine: a core decides and does nothing", f.path, fset.Position(n.Pos()).Line)
			}
			return true
		})
	}
	for _, c := range cores {
		service := strings.Split(c, "/")[1]
		if begun := slices.ContainsFunc(files(t), func(f file) bool { return f.service() == service }); begun && !seen[c] {
			t.Errorf("there is no core %s any more: mend the list", c)
		}
	}
}

// clockCalls lists the forbidden uses of package time in a file.
func clockCalls(f file) []string {
	local := ""
	for _, i := range f.syntax.Imports {
		if p, err := strconv.Unquote(i.Path.Value); err != nil || p != "time" {
			continue
		}
		local = "time"
		if i.Name != nil {
			local = i.Name.Name
		}
	}
	var out []string
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := s.X.(*ast.Ident); ok && local != "" && x.Name == local && slices.Contains(clock, s.Sel.Name) {
			out = append(out, s.Sel.Name)
		}
		return true
	})
	return out
}
