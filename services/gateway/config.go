package gateway

import (
	"net"
	"net/netip"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/podplane/podplane/internal/daemon"
	"github.com/podplane/podplane/services/gateway/internal/access"
)

const (
	// noAudit as AuditLog writes none.
	noAudit = "none"
	// defaultRate is the limit of each user, per second, where users are known.
	defaultRate = 200
	// hostPeer in AcceptFrom is the default route's gateway: the host, as a container sees it.
	hostPeer = "gateway"
)

// Config is the gateway's configuration.
type Config struct {
	daemon.Config
	// Listen is the front door's address.
	Listen string `json:"listen" usage:"address of the front door; one that other hosts reach needs TLS and authentication, or --accept-from"`
	// AcceptFrom lets nobody else connect.
	AcceptFrom []string `json:"acceptFrom" usage:"take connections from these addresses and networks only, such as 10.0.0.0/8 (gateway: the container's host)"`
	TLSCert    string   `json:"tlsCert" usage:"file with the front door's certificate and those between it and its CA; read again when it changes"`
	TLSKey     string   `json:"tlsKey" usage:"file with the certificate's key"`
	Tokens     string   `json:"tokens" usage:"file of bearer tokens (podplane token); turns authentication on; read again when it changes"`
	ClientCA   string   `json:"clientCA" usage:"file with the CA of users' certificates; turns authentication on; read again when it changes"`
	Bindings   string   `json:"bindings" usage:"file that says who has which role in which namespaces; read again when it changes"`
	LocalToken string   `json:"localToken" usage:"file with the token of podplane up, which may do everything; turns authentication on"`
	AuditLog   string   `json:"auditLog" usage:"file that takes who did what, or none; default with authentication: audit/audit.log below --root"`
	RateLimit  float64  `json:"rateLimit" usage:"requests per second of each user, or address where users are not known; 0: 200 with authentication, else no limit"`
	RateBurst  int      `json:"rateBurst" usage:"requests of each at once; 0: twice the rate"`
}

// DefaultConfig gives the defaults.
func DefaultConfig() Config {
	return Config{Config: daemon.DefaultConfig(), Listen: "127.0.0.1:8080"}
}

// authenticates says whether callers have to show who they are.
func (c *Config) authenticates() bool {
	return c.Tokens != "" || c.ClientCA != "" || c.LocalToken != ""
}

func (c *Config) files() access.Files {
	return access.Files{Tokens: c.Tokens, ClientCA: c.ClientCA, Bindings: c.Bindings, LocalToken: c.LocalToken}
}

// rate gives the limit in force; 0: none.
func (c *Config) rate() (perSecond float64, burst int) {
	perSecond, burst = c.RateLimit, c.RateBurst
	if perSecond == 0 && c.authenticates() {
		perSecond = defaultRate
	}
	if burst == 0 {
		burst = int(2*perSecond) + 1
	}
	return perSecond, burst
}

// auditFile gives the audit log's path; empty: none.
func (c *Config) auditFile() string {
	switch {
	case c.AuditLog == noAudit, c.AuditLog == "" && !c.authenticates():
		return ""
	case c.AuditLog == "":
		return filepath.Join(c.Root, "audit", "audit.log")
	}
	return c.AuditLog
}

// Validate refuses a door that would stand open: an address that other hosts reach, without TLS and authentication, to all of them.
func (c *Config) Validate(path *field.Path) field.ErrorList {
	var list field.ErrorList
	if (c.TLSCert == "") != (c.TLSKey == "") {
		list = append(list, field.Required(path.Child("tlsKey"), "tlsCert and tlsKey go together"))
	}
	if c.ClientCA != "" && c.TLSCert == "" {
		list = append(list, field.Required(path.Child("tlsCert"), "clientCA is set: certificates are shown over TLS only"))
	}
	if (c.Tokens != "" || c.ClientCA != "") && c.Bindings == "" {
		list = append(list, field.Required(path.Child("bindings"), "users are known and have no role without it"))
	}
	if c.Bindings != "" && !c.authenticates() {
		list = append(list, field.Required(path.Child("tokens"), "bindings is set: it needs users, by tokens or clientCA"))
	}
	for i, from := range c.AcceptFrom {
		if _, err := parsePeer(from); from != hostPeer && err != nil {
			list = append(list, field.Invalid(path.Child("acceptFrom").Index(i), from, err.Error()))
		}
	}
	if c.RateLimit < 0 {
		list = append(list, field.Invalid(path.Child("rateLimit"), c.RateLimit, "must not be negative"))
	}
	if c.RateBurst < 0 {
		list = append(list, field.Invalid(path.Child("rateBurst"), c.RateBurst, "must not be negative"))
	}
	return append(list, c.validateListen(path.Child("listen"))...)
}

func (c *Config) validateListen(path *field.Path) field.ErrorList {
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil || port == "" {
		return field.ErrorList{field.Invalid(path, c.Listen, "must be host:port, such as 127.0.0.1:8080")}
	}
	if ip, err := netip.ParseAddr(host); host == "localhost" || err == nil && ip.IsLoopback() {
		return nil
	}
	if len(c.AcceptFrom) > 0 || c.TLSCert != "" && c.authenticates() {
		return nil
	}
	return field.ErrorList{field.Invalid(path, c.Listen,
		"must be a loopback address (127.0.0.1, [::1] or localhost): others need TLS (tlsCert, tlsKey) and authentication (tokens or clientCA), or acceptFrom")}
}

// parsePeer reads an address or a network. Everybody is no answer to who may connect.
func parsePeer(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		a = a.Unmap().WithZone("")
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, errPeer
	}
	if p.Bits() == 0 {
		return netip.Prefix{}, errEverybody
	}
	return p.Masked(), nil
}

// contains says whether an address is one of those.
func contains(peers []netip.Prefix, a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return slices.ContainsFunc(peers, func(p netip.Prefix) bool { return p.Contains(a) })
}
