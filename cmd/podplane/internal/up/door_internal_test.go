package up

import (
	"slices"
	"strings"
	"testing"
)

func TestDoors(t *testing.T) {
	closed := Door{TLSCert: "/c", TLSKey: "/k", Tokens: "/t", Bindings: "/b"}
	for name, c := range map[string]struct {
		listen string
		door   Door
		wrong  string
	}{
		"as it comes":          {"127.0.0.1:8080", Door{}, ""},
		"everybody":            {"0.0.0.0:8080", Door{}, "listen"},
		"everybody, closed":    {"0.0.0.0:8443", closed, ""},
		"tokens without roles": {"127.0.0.1:8080", Door{Tokens: "/t"}, "bindings"},
		"relative":             {"127.0.0.1:8080", Door{Tokens: "t", Bindings: "/b"}, "absolute"},
	} {
		cfg := Default()
		cfg.Listen, cfg.Door = c.listen, c.door
		err := cfg.Validate()
		if (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%s: %v, want %q", name, err, c.wrong)
		}
	}
}

func TestGatewayGetsTheWholeDoor(t *testing.T) {
	s := &stack{cfg: Config{RunDir: "/run/x", Listen: "0.0.0.0:8443", Door: Door{TLSCert: "/c", TLSKey: "/k", Tokens: "/t", Bindings: "/b"}}}
	args := s.doorArgs()
	for _, flag := range []string{"--listen", "--tls-cert", "--tls-key", "--tokens", "--client-ca", "--bindings", "--local-token"} {
		if !slices.Contains(args, flag) {
			t.Errorf("%s is left to the environment: %v", flag, args)
		}
	}
	if i := slices.Index(args, "--local-token"); args[i+1] != "/run/x/keys/gateway.token" {
		t.Errorf("%v", args)
	}
	if s.server() != "https://127.0.0.1:8443" {
		t.Error(s.server())
	}
	open := &stack{cfg: Config{RunDir: "/run/x", Listen: "[::1]:8080"}}
	if args := open.doorArgs(); args[slices.Index(args, "--local-token")+1] != "" || open.server() != "http://[::1]:8080" {
		t.Errorf("%v %s", args, open.server())
	}
	private := &stack{cfg: Config{RunDir: "/run/x", Listen: "127.0.0.1:1", Door: Door{private: true}}}
	if args := private.doorArgs(); args[slices.Index(args, "--local-token")+1] == "" {
		t.Errorf("down would open the door to everybody: %v", args)
	}
}

func TestEnvironmentOfTheDoor(t *testing.T) {
	t.Setenv("PODPLANE_TOKENS", "/all")
	t.Setenv("PODPLANE_GATEWAY_BINDINGS", "/own")
	if d := defaultDoor(); d.Tokens != "/all" || d.Bindings != "/own" || !d.closed() {
		t.Errorf("%+v", d)
	}
	t.Setenv("PODPLANE_GATEWAY_TOKENS", "")
	if d := defaultDoor(); d.Tokens != "" {
		t.Errorf("%+v", d)
	}
}
