package arch_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Budgets of STYLE.md. What is over one is printed, not failed: passing a budget starts a conversation. What is far over fails.
const (
	fileLines     = 500
	functionLines = 60
	params        = 5
	methods       = 5
	mainLines     = 100

	tolerance = 2
)

type measure struct {
	what  string
	value int
}

func TestBudgets(t *testing.T) {
	var byFile, byFunction, byParams, byMethods []measure
	for _, f := range files(t) {
		if f.generated || f.test {
			continue
		}
		byFile = append(byFile, measure{f.path, f.lines})
		if f.syntax.Name.Name == "main" && f.under("cmd", "services") && strings.HasSuffix(f.path, "/main.go") && f.lines > mainLines {
			t.Errorf("%s has %d lines: main is boring", f.path, f.lines)
		}
		if slices.Contains([]string{"util", "utils", "common", "helpers", "misc"}, f.syntax.Name.Name) {
			t.Errorf("%s: package %s says nothing about what it holds", f.path, f.syntax.Name.Name)
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			switch x := n.(type) {
			case *ast.FuncDecl:
				name := fmt.Sprintf("%s %s", f.path, x.Name.Name)
				byFunction = append(byFunction, measure{name, fset.Position(x.End()).Line - fset.Position(x.Pos()).Line + 1})
				if strings.HasPrefix(x.Name.Name, "New") {
					byParams = append(byParams, measure{name, x.Type.Params.NumFields()})
				}
			case *ast.TypeSpec:
				if i, ok := x.Type.(*ast.InterfaceType); ok {
					byMethods = append(byMethods, measure{fmt.Sprintf("%s %s", f.path, x.Name.Name), i.Methods.NumFields()})
				}
			}
			return true
		})
	}
	report(t, "lines of a file", fileLines, byFile)
	report(t, "lines of a function", functionLines, byFunction)
	report(t, "parameters of a constructor", params, byParams)
	report(t, "methods of an interface", methods, byMethods)
}

// report prints the maxima, and fails for what is more than twice the budget.
func report(t *testing.T, what string, budget int, all []measure) {
	t.Helper()
	slices.SortFunc(all, func(a, b measure) int { return b.value - a.value })
	for i, m := range all {
		if i < 3 || m.value > budget {
			t.Logf("%s (budget %d): %4d %s", what, budget, m.value, m.what)
		}
		if m.value > tolerance*budget {
			t.Errorf("%s: %s has %d, the budget is %d", what, m.what, m.value, budget)
		}
	}
}

// TestNothingIsLeftOpen finds what must not be in the product: waits without a context, and work that was put off.
func TestNothingIsLeftOpen(t *testing.T) {
	for _, f := range files(t) {
		if f.generated || f.under("test/images") {
			continue
		}
		for _, group := range f.syntax.Comments {
			for _, word := range []string{"TO" + "DO", "FIX" + "ME", "XX" + "X"} {
				if strings.Contains(group.Text(), word) {
					t.Errorf("%s:%d says %s: do it or file it", f.path, fset.Position(group.Pos()).Line, word)
				}
			}
		}
		if f.test || f.under("internal/hostruntime", "internal/testkit", "test") { // these bring up and clean up hosts
			continue
		}
		if slices.Contains(clockCalls(f), "Sleep") {
			t.Errorf("%s sleeps: every wait of a service has a context", f.path)
		}
	}
}

// packages is how many packages a service may pull in, the standard library's included.
const packages = 900

func TestPackagesPulledIn(t *testing.T) {
	root, err := rootDir()
	if err != nil {
		t.Fatal(err)
	}
	for _, service := range []string{"syncd", "pleg", "prober", "volumed", "evictd", "gateway"} {
		cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", module+"services/"+service+"/...")
		cmd.Dir = root
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("list what %s pulls in: %v\n%s", service, err, stderr.String())
			continue
		}
		names := strings.Fields(string(out))
		ours := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !strings.HasPrefix(n, module) })
		t.Logf("%-8s pulls in %d packages, %d of them ours", service, len(names), len(ours))
		if len(names) > packages {
			t.Errorf("%s pulls in %d packages, the budget is %d", service, len(names), packages)
		}
		for _, n := range names {
			if within(n, "k8s.io/kubernetes") || within(n, "k8s.io/client-go/kubernetes") || within(n, "github.com/nats-io/nats-server/v2") {
				t.Errorf("%s pulls in %s, if only through others", service, n)
			}
		}
	}
}
