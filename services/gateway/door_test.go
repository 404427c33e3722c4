package gateway

import (
	"net/netip"
	"strings"
	"testing"
)

func TestDefaultGateway(t *testing.T) {
	const head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
	for _, c := range []struct{ table, want string }{
		{head + "eth0\t00000000\t010012AC\t0003\t0\t0\t0\t00000000\t0\t0\t0\neth0\t000012AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n", "172.18.0.1"},
		{head + "eth0\t000012AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n", ""},
		{head + "ppp0\t00000000\t00000000\t0001\t0\t0\t0\t00000000\t0\t0\t0\n", ""},
		{head + "eth0\t00000000\tnonsense\t0003\t0\t0\t0\t00000000\t0\t0\t0\neth0\t\n", ""},
	} {
		got, err := defaultGateway(strings.NewReader(c.table))
		if (err == nil) != (c.want != "") || err == nil && got.String() != c.want {
			t.Errorf("%q: %v %v, want %q", c.table, got, err, c.want)
		}
	}
}

func TestPeers(t *testing.T) {
	peers, err := acceptedPeers([]string{"10.1.0.0/16", "192.0.2.7", "2001:db8::/32"})
	if err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]bool{
		"10.1.2.3": true, "10.2.0.1": false, "192.0.2.7": true, "192.0.2.8": false, "::ffff:192.0.2.7": true, "2001:db8::1": true, "2001:db9::1": false,
		"127.0.0.1": true, "::1": true, "fe80::1%eth0": false,
	} {
		if got := contains(peers, netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: %v", address, got)
		}
	}
	for _, bad := range []string{"", "0.0.0.0/0", "::/0", "10.0.0.0/33", "host.example"} {
		if p, err := parsePeer(bad); err == nil {
			t.Errorf("%q is %v", bad, p)
		}
	}
}

func TestConfigurations(t *testing.T) {
	for name, c := range map[string]struct {
		set   func(*Config)
		wrong string // the field; empty: none
	}{
		"defaults":                  {func(*Config) {}, ""},
		"loopback with tokens":      {func(c *Config) { c.Tokens, c.Bindings = "t", "b" }, ""},
		"everybody":                 {func(c *Config) { c.Listen = "0.0.0.0:8080" }, "listen"},
		"everybody, no host":        {func(c *Config) { c.Listen = ":8080" }, "listen"},
		"a name":                    {func(c *Config) { c.Listen = "node.example:8080" }, "listen"},
		"insecureListen opens none": {func(c *Config) { c.Listen, c.InsecureListen = "0.0.0.0:8080", true }, "listen"},
		"tokens without TLS":        {func(c *Config) { c.Listen, c.Tokens, c.Bindings = "0.0.0.0:8080", "t", "b" }, "listen"},
		"TLS without users":         {func(c *Config) { c.Listen, c.TLSCert, c.TLSKey = "0.0.0.0:8080", "c", "k" }, "listen"},
		"TLS and tokens": {func(c *Config) {
			c.Listen, c.TLSCert, c.TLSKey, c.Tokens, c.Bindings = "0.0.0.0:8080", "c", "k", "t", "b"
		}, ""},
		"TLS and certificates": {func(c *Config) {
			c.Listen, c.TLSCert, c.TLSKey, c.ClientCA, c.Bindings = "[::]:8080", "c", "k", "a", "b"
		}, ""},
		"peers":                       {func(c *Config) { c.Listen, c.AcceptFrom = "0.0.0.0:8080", []string{"gateway"} }, ""},
		"every peer":                  {func(c *Config) { c.Listen, c.AcceptFrom = "0.0.0.0:8080", []string{"0.0.0.0/0"} }, "acceptFrom[0]"},
		"a certificate without a key": {func(c *Config) { c.TLSCert = "c" }, "tlsKey"},
		"certificates without TLS":    {func(c *Config) { c.ClientCA, c.Bindings = "a", "b" }, "tlsCert"},
		"users without roles":         {func(c *Config) { c.Tokens = "t" }, "bindings"},
		"roles without users":         {func(c *Config) { c.Bindings = "b" }, "tokens"},
		"a negative rate":             {func(c *Config) { c.RateLimit = -1 }, "rateLimit"},
		"a negative burst":            {func(c *Config) { c.RateBurst = -1 }, "rateBurst"},
		"no port":                     {func(c *Config) { c.Listen = "127.0.0.1" }, "listen"},
	} {
		cfg := DefaultConfig()
		c.set(&cfg)
		list := cfg.Validate(nil)
		switch {
		case c.wrong == "" && len(list) > 0:
			t.Errorf("%s: %v", name, list)
		case c.wrong != "" && (len(list) != 1 || list[0].Field != c.wrong):
			t.Errorf("%s: %v, want one about %s", name, list, c.wrong)
		}
	}
}

func TestWhatIsOnWithAuthentication(t *testing.T) {
	cfg := DefaultConfig()
	if r, _ := cfg.rate(); r != 0 || cfg.auditFile() != "" {
		t.Errorf("plain: %v %q", r, cfg.auditFile())
	}
	cfg.LocalToken = "l"
	if r, b := cfg.rate(); r != defaultRate || b < 2*defaultRate || cfg.auditFile() != "/var/lib/podplane/audit/audit.log" {
		t.Errorf("with users: %v %v %q", r, b, cfg.auditFile())
	}
	cfg.AuditLog, cfg.RateLimit, cfg.RateBurst = "none", 5, 7
	if r, b := cfg.rate(); r != 5 || b != 7 || cfg.auditFile() != "" {
		t.Errorf("as set: %v %v %q", r, b, cfg.auditFile())
	}
}
