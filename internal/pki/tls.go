package pki

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"slices"
	"strings"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/reload"
)

// groupAndOthers are the bits of a mode that let anybody but the owner read a key.
const groupAndOthers = 0o077

// Process is a process with its certificate, in a directory that Ensure made.
type Process struct{ current *reload.Value[*identity] }

type identity struct {
	pair  tls.Certificate
	roots *x509.CertPool
}

// Load reads a process' certificate, its key and the authority. failed is told of each later change that can't be used.
func Load(dir, name string, failed func(error)) (*Process, error) {
	if info, err := os.Stat(KeyFile(dir, name)); err == nil && info.Mode().Perm()&groupAndOthers != 0 {
		return nil, fault.New(fault.Invalid, "%s: others may read or write it (mode %04o, want 0600)", KeyFile(dir, name), info.Mode().Perm())
	}
	current, err := reload.Open(parseIdentity, failed, CertFile(dir, name), KeyFile(dir, name), CertFile(dir, CA))
	if err != nil {
		return nil, fault.New(fault.Invalid, "read the certificate of %s (podplane certs makes it): %w", name, err)
	}
	return &Process{current}, nil
}

func parseIdentity(c [][]byte) (*identity, error) {
	pair, err := tls.X509KeyPair(c[0], c[1])
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(c[2]) {
		return nil, fault.New(fault.Invalid, "%s.crt holds no certificate", CA)
	}
	return &identity{pair, roots}, nil
}

// Server gives the configuration of a server that takes connections of Podplane's processes only.
func (p *Process) Server() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return &p.current.Get().pair, nil
		},
		ClientAuth: tls.RequireAnyClientCert, // and verified against the present authority:
		VerifyConnection: func(s tls.ConnectionState) error {
			leaf, err := p.verify(s, x509.ExtKeyUsageClientAuth)
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(leaf.DNSNames, func(n string) bool { return strings.HasSuffix(n, domain) }) {
				return fault.New(fault.Unauthenticated, "the certificate of %q is none of Podplane's processes'", leaf.Subject.CommonName)
			}
			return nil
		},
	}
}

// Client gives the configuration of connections to another process, by its name.
func (p *Process) Client(peer string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: Name(peer),
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &p.current.Get().pair, nil
		},
		InsecureSkipVerify: true, // the library would use the authority of the start; it is verified against the present one:
		VerifyConnection: func(s tls.ConnectionState) error {
			leaf, err := p.verify(s, x509.ExtKeyUsageServerAuth)
			if err != nil {
				return err
			}
			return leaf.VerifyHostname(Name(peer))
		},
	}
}

// Among gives the configuration of both ends of connections among processes of one name, such as the servers of the bus.
func (p *Process) Among(name string) *tls.Config {
	c := p.Server()
	client := p.Client(name)
	c.GetClientCertificate, c.InsecureSkipVerify = client.GetClientCertificate, true // as in Client
	c.VerifyConnection = func(s tls.ConnectionState) error {
		leaf, err := p.verify(s, x509.ExtKeyUsageAny)
		if err != nil {
			return err
		}
		return leaf.VerifyHostname(Name(name))
	}
	return c
}

// verify checks the other side's certificate, on resumed connections too.
func (p *Process) verify(s tls.ConnectionState, usage x509.ExtKeyUsage) (*x509.Certificate, error) {
	if len(s.PeerCertificates) == 0 {
		return nil, fault.New(fault.Unauthenticated, "the other side shows no certificate")
	}
	leaf, between := s.PeerCertificates[0], x509.NewCertPool()
	for _, c := range s.PeerCertificates[1:] {
		between.AddCert(c)
	}
	_, err := leaf.Verify(x509.VerifyOptions{Roots: p.current.Get().roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{usage}})
	return leaf, err
}
