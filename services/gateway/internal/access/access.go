package access

import (
	"crypto/subtle"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/reload"
	"github.com/podplane/podplane/internal/tokens"
)

const (
	// Authenticated is the group of everybody who has shown who they are.
	Authenticated = "system:authenticated"
	// LocalUser is `podplane up` itself, which may do everything.
	LocalUser = "system:podplane"
)

// Files are where users, and what they may do, are written down. Those without a name are not used.
type Files struct {
	// Tokens holds bearer tokens, ClientCA the certificates that sign users'.
	Tokens, ClientCA string
	// Bindings says who has which role where.
	Bindings string
	// LocalToken holds the token of `podplane up`.
	LocalToken string
}

// Identity is who a caller is.
type Identity struct {
	User   string
	Groups []string
	// Via is how the caller has shown it: "token:<id>", "certificate:<serial>" or "local".
	Via string
}

// Access knows users and roles. Its methods may be called from any goroutine.
type Access struct {
	tokens   *reload.Value[*tokens.Set]
	clientCA *reload.Value[*x509.CertPool]
	bindings *reload.Value[*Bindings]
	local    *reload.Value[string]
	now      func() time.Time
}

// Open reads the files. failed is told of each later change of one that can't be used.
func Open(f Files, failed func(error)) (*Access, error) {
	a := &Access{now: time.Now}
	var err error
	if f.Tokens != "" {
		if a.tokens, err = reload.Open(func(c [][]byte) (*tokens.Set, error) { return tokens.Parse(c[0]) }, failed, f.Tokens); err != nil {
			return nil, fault.New(fault.Invalid, "read the tokens: %w", err)
		}
	}
	if f.ClientCA != "" {
		if a.clientCA, err = reload.Open(parsePool, failed, f.ClientCA); err != nil {
			return nil, fault.New(fault.Invalid, "read the CA of client certificates: %w", err)
		}
	}
	if f.Bindings != "" {
		if a.bindings, err = reload.Open(func(c [][]byte) (*Bindings, error) { return ParseBindings(c[0]) }, failed, f.Bindings); err != nil {
			return nil, fault.New(fault.Invalid, "read the bindings: %w", err)
		}
	}
	if f.LocalToken != "" {
		if a.local, err = reload.Open(parseLocal, failed, f.LocalToken); err != nil {
			return nil, fault.New(fault.Invalid, "read the token of this host: %w", err)
		}
	}
	return a, nil
}

func parsePool(c [][]byte) (*x509.CertPool, error) {
	pool, n := x509.NewCertPool(), 0
	for rest := c[0]; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil || block.Type != "CERTIFICATE" {
			return nil, fault.New(fault.Invalid, "holds a block %q that is no certificate", block.Type)
		}
		pool.AddCert(cert)
		n++
	}
	if n == 0 {
		return nil, fault.New(fault.Invalid, "holds no certificate")
	}
	return pool, nil
}

func parseLocal(c [][]byte) (string, error) {
	token := strings.TrimSpace(string(c[0]))
	if len(token) < 32 {
		return "", fault.New(fault.Invalid, "holds no token")
	}
	return token, nil
}

// Err says which file can't be used as it is now; nil when all are in use.
func (a *Access) Err() error {
	if a.tokens != nil && a.tokens.Err() != nil {
		return a.tokens.Err()
	}
	if a.clientCA != nil && a.clientCA.Err() != nil {
		return a.clientCA.Err()
	}
	if a.bindings != nil {
		return a.bindings.Err()
	}
	return nil
}

// Authenticate finds who sends a request. Errors are of kind Unauthenticated and hold nothing of what was shown.
func (a *Access) Authenticate(r *http.Request) (Identity, error) {
	switch shown := r.Header.Values("Authorization"); len(shown) {
	case 0:
	case 1:
		return a.byToken(shown[0])
	default:
		return Identity{}, fault.New(fault.Unauthenticated, "the request has %d Authorization headers, one is allowed", len(shown))
	}
	if a.clientCA != nil && r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		return a.byCertificate(r.TLS.PeerCertificates)
	}
	return Identity{}, fault.New(fault.Unauthenticated, "the request shows no %s", a.wanted())
}

func (a *Access) wanted() string {
	var ways []string
	if a.tokens != nil || a.local != nil {
		ways = append(ways, "bearer token")
	}
	if a.clientCA != nil {
		ways = append(ways, "client certificate")
	}
	return strings.Join(ways, " or ")
}

func (a *Access) byToken(header string) (Identity, error) {
	scheme, token, ok := strings.Cut(header, " ")
	token = strings.TrimSpace(token)
	if !ok || !strings.EqualFold(scheme, "Bearer") || token == "" {
		return Identity{}, fault.New(fault.Unauthenticated, "the Authorization header must be \"Bearer\" and a token")
	}
	if a.local != nil && subtle.ConstantTimeCompare([]byte(token), []byte(a.local.Get())) == 1 {
		return Identity{User: LocalUser, Groups: []string{Authenticated}, Via: "local"}, nil
	}
	if a.tokens == nil {
		return Identity{}, fault.New(fault.Unauthenticated, "the bearer token is unknown or has been revoked")
	}
	t, err := a.tokens.Get().Lookup(token, a.now())
	if err != nil {
		return Identity{}, err
	}
	return Identity{User: t.User, Groups: append(slices.Clone(t.Groups), Authenticated), Via: "token:" + t.ID}, nil
}

// byCertificate verifies the chain anew for each request, so that a CA that was taken out ends open connections' say as well.
func (a *Access) byCertificate(chain []*x509.Certificate) (Identity, error) {
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	leaf := chain[0]
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: a.clientCA.Get(), Intermediates: between, CurrentTime: a.now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return Identity{}, fault.New(fault.Unauthenticated, "the client certificate is not accepted: %w", err)
	}
	for _, name := range append([]string{leaf.Subject.CommonName}, leaf.Subject.Organization...) {
		if err := tokens.CheckName(name); err != nil {
			return Identity{}, fault.New(fault.Unauthenticated, "the client certificate is not accepted: %w", err)
		}
	}
	return Identity{
		User: leaf.Subject.CommonName, Groups: append(slices.Clone(leaf.Subject.Organization), Authenticated),
		Via: "certificate:" + leaf.SerialNumber.Text(16),
	}, nil
}

// Authorize says whether a caller may do this; the error is of kind PermissionDenied and reads like Kubernetes' own.
func (a *Access) Authorize(id Identity, what Attributes) error {
	if id.User == LocalUser && id.Via == "local" {
		return nil
	}
	if what.Resource == "" && discovery(what.Path) {
		return nil
	}
	if a.bindings != nil && a.bindings.Get().Allow(id, what) {
		return nil
	}
	return what.forbidden(id.User)
}
