package arch_test

import (
	"strings"
	"testing"
)

// ban forbids imports to some files, for a reason.
type ban struct {
	name   string
	reason string
	// forbidden says whether f may not import name.
	forbidden func(f file, name string) bool
}

// leafClientGo are the packages of client-go that drag nothing behind them.
var leafClientGo = []string{"k8s.io/client-go/util/flowcontrol", "k8s.io/client-go/util/workqueue", "k8s.io/client-go/util/jsonpath"}

var bans = []ban{
	{
		name: "services import each other", reason: "a service is replaced alone; what two share belongs to internal",
		forbidden: func(f file, name string) bool {
			rest, ok := strings.CutPrefix(name, module+"services/")
			other, _, _ := strings.Cut(rest, "/")
			return ok && f.service() != "" && other != f.service()
		},
	},
	{
		name: "somebody else imports a service", reason: "only the multi-call binary and the tests of the whole put services together",
		forbidden: func(f file, name string) bool {
			return within(name, module+"services") && f.service() == "" && !f.under("cmd/podplane", "test")
		},
	},
	{
		name: "internal imports what builds on it", reason: "the shared modules know none of their users",
		forbidden: func(f file, name string) bool {
			return f.under("internal") && (within(name, module+"cmd") || within(name, module+"test"))
		},
	},
	{
		name: "proto imports ours", reason: "the wire's types stand alone, so that anybody can use them",
		forbidden: func(f file, name string) bool {
			return f.under("proto") && strings.HasPrefix(name, module) && !within(name, module+"proto")
		},
	},
	{
		name: "NATS outside of internal/bus", reason: "one place knows the bus' wire; everybody else sees records",
		forbidden: func(f file, name string) bool {
			return within(name, "github.com/nats-io") && !f.under("internal/bus")
		},
	},
	{
		name: "nats-server outside of internal/bus/embedded", reason: "the server is large; who only talks to it must not link it",
		forbidden: func(f file, name string) bool {
			return within(name, "github.com/nats-io/nats-server") && !f.under("internal/bus/embedded")
		},
	},
	{
		name: "the embedded server in a service", reason: "a service shares its pages with five others; the server is the command line's",
		forbidden: func(f file, name string) bool {
			return within(name, module+"internal/bus/embedded") && f.service() != "" && !f.test
		},
	},
	{
		name: "CRI's wire types outside of internal/cri", reason: "one place knows CRI's wire; everybody else sees plain values",
		// The benchmark repeats the very requests that Podplane made.
		forbidden: func(f file, name string) bool {
			return within(name, "k8s.io/cri-api") && !f.under("internal/cri") && !f.under("test/bench")
		},
	},
	{
		name: "the kubelet's own module", reason: "its behaviour is what this project implements; k8s.io/kubernetes pulls in everything",
		forbidden: func(_ file, name string) bool {
			return within(name, "k8s.io/kubernetes") || within(name, "sigs.k8s.io/controller-runtime")
		},
	},
	{
		name: "heavy parts of client-go", reason: "each service must stay at some 10 MiB; only leaf packages are worth it",
		forbidden: func(_ file, name string) bool {
			if !within(name, "k8s.io/client-go") {
				return false
			}
			for _, leaf := range leafClientGo {
				if within(name, leaf) {
					return false
				}
			}
			return true
		},
	},
	{
		name: "grpc-gateway outside of the gateway", reason: "REST is turned into gRPC in one place",
		forbidden: func(f file, name string) bool {
			return (within(name, "github.com/grpc-ecosystem/grpc-gateway") || within(name, module+"proto/gateway")) && f.service() != "gateway" && !f.under("proto")
		},
	},
	{
		name: "testing in the product", reason: "test code is not shipped",
		forbidden: func(f file, name string) bool {
			return within(name, "testing") && !f.test && !f.under("test", "internal/testkit", "internal/cri", "internal/bus")
		},
	},
}

func TestImports(t *testing.T) {
	for _, b := range bans {
		t.Run(b.name, func(t *testing.T) {
			for _, f := range files(t) {
				for _, name := range f.imports {
					if b.forbidden(f, name) {
						t.Errorf("%s imports %s: %s", f.path, name, b.reason)
					}
				}
			}
		})
	}
}

// TestBansBite shows of each ban that it forbids something and not everything.
func TestBansBite(t *testing.T) {
	at := func(path string) file { return file{path: path} }
	for name, c := range map[string]struct {
		bad, good file
		imports   string
	}{
		"services import each other":                   {at("services/syncd/a.go"), at("services/pleg/a.go"), module + "services/pleg"},
		"somebody else imports a service":              {at("internal/rpc/a.go"), at("cmd/podplane/main.go"), module + "services/syncd"},
		"internal imports what builds on it":           {at("internal/rpc/a.go"), at("test/e2e/a.go"), module + "test/x"},
		"proto imports ours":                           {at("proto/podplane/v1/a.go"), at("internal/rpc/a.go"), module + "internal/fault"},
		"NATS outside of internal/bus":                 {at("services/syncd/a.go"), at("internal/bus/conn.go"), "github.com/nats-io/nats.go"},
		"nats-server outside of internal/bus/embedded": {at("internal/bus/conn.go"), at("internal/bus/embedded/a.go"), "github.com/nats-io/nats-server/v2/server"},
		"the embedded server in a service":             {at("services/syncd/a.go"), at("cmd/podplane/nats.go"), module + "internal/bus/embedded"},
		"CRI's wire types outside of internal/cri":     {at("services/syncd/a.go"), at("internal/cri/a.go"), "k8s.io/cri-api/pkg/apis/runtime/v1"},
		"the kubelet's own module":                     {at("test/a.go"), file{}, "k8s.io/kubernetes/pkg/kubelet"},
		"heavy parts of client-go":                     {at("services/syncd/a.go"), file{}, "k8s.io/client-go/kubernetes"},
		"grpc-gateway outside of the gateway":          {at("services/syncd/a.go"), at("services/gateway/a.go"), module + "proto/gateway/podplane/v1"},
		"testing in the product":                       {at("services/syncd/a.go"), file{path: "services/syncd/a_test.go", test: true}, "testing"},
	} {
		for _, b := range bans {
			if b.name != name {
				continue
			}
			if !b.forbidden(c.bad, c.imports) {
				t.Errorf("%s: %s may import %s", name, c.bad.path, c.imports)
			}
			if c.good.path != "" && b.forbidden(c.good, c.imports) {
				t.Errorf("%s: %s may not import %s", name, c.good.path, c.imports)
			}
		}
	}
}
