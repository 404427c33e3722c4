package up

import (
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/podplane/podplane/cmd/podplane/internal/rest"
	"github.com/podplane/podplane/internal/pki"
	"github.com/podplane/podplane/internal/tokens"
	"github.com/podplane/podplane/services/gateway"
)

// Door is how gateway's door is kept. The zero value is plain and open to this host.
type Door struct {
	// TLSCert and TLSKey are the door's certificate and key.
	TLSCert, TLSKey string
	// Tokens, ClientCA and Bindings say who users are and what they may do.
	Tokens, ClientCA, Bindings string
	// private lets only this process in.
	private bool
}

// defaultDoor is what the environment says, in gateway's own words: what is on the command line of a child comes before it.
func defaultDoor() Door {
	setting := func(name string) string {
		if v, ok := os.LookupEnv("PODPLANE_GATEWAY_" + name); ok {
			return v
		}
		return os.Getenv("PODPLANE_" + name)
	}
	return Door{
		TLSCert: setting("TLS_CERT"), TLSKey: setting("TLS_KEY"),
		Tokens: setting("TOKENS"), ClientCA: setting("CLIENT_CA"), Bindings: setting("BINDINGS"),
	}
}

// closed says whether callers have to show who they are.
func (d Door) closed() bool { return d.Tokens != "" || d.ClientCA != "" || d.private }

// check says what is wrong, as gateway itself would, before anything is started.
func (d Door) check(listen string) error {
	g := gateway.DefaultConfig()
	g.Listen, g.TLSCert, g.TLSKey, g.Tokens, g.ClientCA, g.Bindings = listen, d.TLSCert, d.TLSKey, d.Tokens, d.ClientCA, d.Bindings
	if err := g.Validate(nil).ToAggregate(); err != nil {
		return fmt.Errorf("the front door: %w", err)
	}
	return nil
}

// args are gateway's arguments. All of them are said, so that the environment can't add to them.
func (s *stack) doorArgs() []string {
	d := s.cfg.Door
	local := ""
	if d.closed() {
		local = localTokenFile(s.cfg)
	}
	return []string{
		"--listen", s.cfg.Listen, "--tls-cert", d.TLSCert, "--tls-key", d.TLSKey,
		"--tokens", d.Tokens, "--client-ca", d.ClientCA, "--bindings", d.Bindings, "--local-token", local,
	}
}

func localTokenFile(c Config) string { return filepath.Join(keysDir(c), "gateway.token") }

// makeLocalToken makes the token by which this process uses gateway; it is new at each start.
func (s *stack) makeLocalToken() error {
	if !s.cfg.Door.closed() {
		return nil
	}
	file := localTokenFile(s.cfg)
	if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("replace the token of this process: %w", err)
	}
	if err := os.WriteFile(file, []byte(tokens.Local()+"\n"), 0o600); err != nil {
		return fmt.Errorf("make the token of this process: %w", err)
	}
	return nil
}

// server is gateway's address, as this host reaches it.
func (s *stack) server() string {
	address := s.cfg.Listen
	if host, port, err := net.SplitHostPort(address); err == nil {
		if ip := net.ParseIP(host); host == "" || ip.IsUnspecified() {
			address = net.JoinHostPort("127.0.0.1", port)
		}
	}
	if s.cfg.Door.TLSCert != "" {
		return "https://" + address
	}
	return "http://" + address
}

// client is this process' own client of gateway.
func (s *stack) client() (*rest.Client, error) {
	var o rest.Options
	if s.cfg.Door.closed() {
		o.TokenFile = localTokenFile(s.cfg)
	}
	if s.cfg.Door.TLSCert != "" {
		o.Pinned = s.cfg.Door.TLSCert
	}
	return rest.New(s.server(), o)
}

// checkCertificates says which certificate of the services is missing, before all of them do.
func (s *stack) checkCertificates() error {
	if s.cfg.TLSDir == "" {
		return nil
	}
	names := append([]string{}, Services...)
	if s.cfg.NATSURL == "" {
		names = append(names, pki.Bus)
	}
	for _, name := range names {
		if _, err := pki.Load(s.cfg.TLSDir, name, nil); err != nil {
			return err
		}
	}
	return nil
}
